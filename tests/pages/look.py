"""Looks at the pages of `muster web` in a real browser, with and without JavaScript, in both colour schemes.

    python tests/pages/look.py FOLDER

Brings up a local cluster in which something broke, opens each page in Chromium, writes a picture of it to FOLDER, and fails if axe-core finds a
violation of WCAG 2.2 AA, if the browser complains of anything (a refused resource, an error of a script), if a page needs JavaScript, if a killed
rank is not on an open page within five seconds, or if a page cannot be reached with the keyboard. Needs Debian's `chromium` and `chromium-driver`, and
fetches axe-core from the npm registry. `muster` must be on PATH. `make pages` runs it.
"""

import base64
import contextlib
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request

AXE = "https://registry.npmjs.org/axe-core/-/axe-core-4.14.1.tgz"
AXE_SHA512 = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
# Only a failure waits this long.
PATIENCE = 120
LOOK = 0.1
TAB, ENTER = "\ue004", "\ue007"

SCRIPT = """
import sys, time
for step in range(1, 100_000):
    print(f"step={step} loss={1 / step:.4f}", flush=True)
    time.sleep(0.1)
"""

QUEUES = """
queues:
- name: research
  quota: 12
  queues:
  - {name: vision, quota: 4, namespaces: [default]}
  - {name: speech, quota: 8, namespaces: [speech]}
"""


def until(what, look):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(LOOK)
    raise SystemExit(f"never: {what}")


def axe():
    with urllib.request.urlopen(AXE) as answer:
        packed = answer.read()
    if base64.b64encode(hashlib.sha512(packed).digest()).decode() != AXE_SHA512:
        raise SystemExit(f"{AXE} is not what it was")
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        return files.extractfile("package/axe.min.js").read().decode()


class Browser:
    """Chromium through its driver, by the protocol WebDriver (w3.org/TR/webdriver2)."""

    def __init__(self, profile):
        self.driver = subprocess.Popen(
            [shutil.which("chromedriver") or sys.exit("chromedriver is not installed (Debian: chromium-driver)"), "--port=0"],
            stdout=subprocess.PIPE, text=True, start_new_session=True)
        for line in self.driver.stdout:
            if found := re.search(r"started successfully on port (\d+)", line):
                self.base = f"http://127.0.0.1:{found[1]}"
                break
        flags = ["--headless=new", "--disable-gpu", "--hide-scrollbars", "--window-size=1280,1000", f"--user-data-dir={profile}"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")
        wanted = {"browserName": "chrome", "goog:chromeOptions": {"args": flags}, "goog:loggingPrefs": {"browser": "ALL"}}
        answer = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.base += f"/session/{answer['sessionId']}"

    def ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise SystemExit(f"{method} {path}: {error.read().decode()}") from None

    def open(self, url):
        self.ask("POST", "/url", {"url": url})

    def run(self, script):
        return self.ask("POST", "/execute/sync", {"script": script, "args": []})

    def wait_for(self, script):
        return self.ask("POST", "/execute/async", {"script": script, "args": []})

    def devtools(self, command, params):
        return self.ask("POST", "/goog/cdp/execute", {"cmd": command, "params": params})

    def type(self, keys):
        press = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": press}]})

    def picture(self, file, most=4000):
        height = self.run("return document.documentElement.scrollHeight")
        self.devtools("Emulation.setDeviceMetricsOverride", {"width": 1280, "height": min(height, most), "deviceScaleFactor": 1, "mobile": False})
        file.write_bytes(base64.b64decode(self.ask("GET", "/screenshot")))
        self.devtools("Emulation.clearDeviceMetricsOverride", {})

    def complaints(self):
        return [entry["message"] for entry in self.ask("POST", "/se/log", {"type": "browser"}) if entry["level"] in ("SEVERE", "WARNING")]

    def end(self):
        with contextlib.suppress(SystemExit, OSError):
            self.ask("DELETE", "")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.driver.pid, signal.SIGKILL)
        self.driver.wait()


class Cluster:
    def __init__(self, folder):
        self.env = os.environ | {"MUSTER_LOCAL_DIR": str(folder / "cluster"), "MUSTER_CONFIG": str(folder / "config.yaml")}
        self.env.pop("MUSTER_SERVER", None)
        self.folder = folder
        self.web = None

    def muster(self, *args):
        return subprocess.run(["muster", *args], env=self.env, check=True, stdout=subprocess.PIPE, text=True).stdout

    def status(self, job):
        return json.loads(self.muster("get", "job", job, "-o", "json"))["status"]

    def trains(self, job, generation):
        def look():
            status = self.status(job)
            steps = [rank["lastStep"] for rank in status["ranks"]]
            return status if status["generation"] == generation and steps and all(steps) else None

        return until(f"{job} trains as generation {generation}", look)

    def up(self):
        queues = self.folder / "queues.yaml"
        queues.write_text(QUEUES)
        self.env["MUSTER_QUEUES"] = str(queues)
        self.muster("local", "up", "--nodes", "2")
        self.muster("local", "add-node", "--hardware", "8xh100")
        self.muster("local", "add-node", "--hardware", "4xl40s")
        script = self.folder / "train.py"
        script.write_text(SCRIPT)
        run = ["run", "--python", sys.executable, "--nproc-per-node"]
        self.muster(*run, "1", "--nnodes", "2", "--gpus-per-node", "0", "--name", "pretrain", str(script))
        self.muster(*run, "8", "--nnodes", "1", "--gpus-per-node", "8", "--name", "tune", str(script))
        self.muster(*run, "1", "--nnodes", "5", "--gpus-per-node", "0", "--name", "waits", str(script))
        # The page of the queue has jobs of each kind, and quotas (QUEUES).
        self.muster(*run, "1", "--nnodes", "1", "--gpus-per-node", "8", "--name", "w" * 63, str(script))
        self.muster(*run, "1", "--nnodes", "1", "--gpus-per-node", "0", "--name", "evaluate", "--after", "waits", str(script))
        self.muster(*run, "1", "--nnodes", "1", "--gpus-per-node", "0", "--name", "held", "--suspend", str(script))
        self.trains("pretrain", 1)
        self.trains("tune", 1)
        self.muster("local", "inject", "node-4", "gpu2", "xid=79")
        until("the GPU is withheld", lambda: "fail_now" in self.muster("get", "node", "node-4", "-o", "json"))

    def serve(self):
        self.web = subprocess.Popen(["muster", "web"], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return self.web.stdout.readline().strip()

    def down(self):
        if self.web:
            self.web.kill()
            self.web.wait()
        subprocess.run(["muster", "local", "down"], env=self.env, check=False, stdout=subprocess.DEVNULL)


def check(browser, page, theme, checker):
    browser.run(checker)
    found = browser.wait_for(
        "const done = arguments[arguments.length - 1];"
        "axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']}).then((r) => done(r.violations), (e) => done([{id: String(e), nodes: []}]));")
    return [f"{page}, {theme}: {one['id']}: {one.get('help', '')}: {[node['html'][:200] for node in one['nodes'][:3]]}" for one in found]


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    checker = axe()
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        cluster, browser = Cluster(folder), Browser(folder / "profile")
        try:
            cluster.up()
            link = cluster.serve()
            root = link.split("/open")[0]
            browser.open(link)
            pages = {
                "jobs": "/", "job": "/jobs/default/pretrain", "logs": "/jobs/default/pretrain/logs", "queue": "/queue", "nodes": "/nodes", "node": "/nodes/node-4",
                "goodput": "/goodput", "events": "/events?warnings=1",
            }
            # An open page shows what happens.
            browser.open(root + pages["job"])
            victim = cluster.status("pretrain")["ranks"][1]["pid"]
            os.kill(victim, signal.SIGKILL)
            killed = time.monotonic()
            until("the kill is on the page", lambda: "#2 WorkerKilled" in browser.run("return document.body.innerText"))
            seconds = time.monotonic() - killed
            print(f"a killed rank was on the open page after {seconds:.1f} s")
            if seconds > 5:
                wrong.append(f"a killed rank was on the page after {seconds:.1f} s")
            cluster.trains("pretrain", 2)
            for page, path in pages.items():
                for theme in ("light", "dark"):
                    browser.devtools("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]})
                    browser.open(root + path)
                    browser.picture(out / f"{page}-{theme}.png")
                    if (page, theme) == ("job", "light"):
                        browser.picture(out / "readme.png", 1130)
                    wrong += check(browser, page, theme, checker)
                parts = browser.run("return document.querySelectorAll('tr, pre').length")
                browser.devtools("Emulation.setScriptExecutionDisabled", {"value": True})
                browser.open(root + path)
                source = browser.ask("GET", "/source")
                # Rows may have come or gone meanwhile.
                if not 0 < parts <= 2 * len(re.findall("<(?:tr|pre)[ >]", source)):
                    wrong.append(f"{page}: says nothing without JavaScript")
                browser.devtools("Emulation.setScriptExecutionDisabled", {"value": False})
            # By keyboard alone, from the list to a job: the first stop leads past the links of the top.
            browser.open(root + "/")
            browser.type(TAB)
            first = browser.run("return document.activeElement.innerText")
            if first != "Skip to the content":
                wrong.append(f"the first stop of the keyboard is {first!r}")
            for _ in range(30):
                if browser.run("return document.activeElement.getAttribute('href') || ''").startswith("/jobs/"):
                    browser.type(ENTER)
                    break
                browser.type(TAB)
            until("the keyboard opens a job", lambda: browser.run("return location.pathname").startswith("/jobs/"))
            wrong += [f"the browser says: {text}" for text in browser.complaints()]
            report = folder / "report.html"
            report.write_text(cluster.muster("report", "pretrain"))
            browser.open(report.as_uri())
            browser.picture(out / "report.png")
            wrong += check(browser, "report", "light", checker)
        finally:
            browser.end()
            cluster.down()
    print(f"pictures are in {out}")
    if wrong:
        raise SystemExit("\n".join(wrong))
    print("nothing wrong was found")


if __name__ == "__main__":
    main()
