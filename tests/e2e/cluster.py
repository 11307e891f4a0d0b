"""The cluster that kubectl reaches, and Muster in it as a user sees it: through kubectl and the command line `muster`.

Knows how to ask and how to break things. What must be true then, it leaves to the story.
"""

import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NAMESPACE = "muster-system"
AGENTS = "app.kubernetes.io/name=muster-agent"
COORDINATOR = "muster-coordinator-0"
COORDINATOR_ACCOUNT = f"system:serviceaccount:{NAMESPACE}:muster-coordinator"
AUDIENCE = f"muster-coordinator.{NAMESPACE}"
SCRIPT = "/muster-e2e/train.py"


class NotSo(Exception):
    """A promise of the documentation does not hold."""


class NotTested(Exception):
    """This cluster, or the way in which the story was started, lacks what the step needs."""


class Kubectl:
    def __init__(self, program):
        self.command = shlex.split(program)

    def __call__(self, *arguments, may_fail=False, timeout=60, stdin=None):
        """What kubectl prints. None if it was allowed to fail and did."""
        return answer([*self.command, *arguments], os.environ, may_fail, timeout, stdin)

    def refusal(self, *arguments, stdin=None):
        """What it says when it is refused."""
        return refusal([*self.command, *arguments], os.environ, stdin)

    def json(self, *arguments, may_fail=False):
        output = self(*arguments, "-o", "json", may_fail=may_fail)
        return None if output is None else json.loads(output)

    def objects(self, kind, *arguments):
        return self.json("get", kind, *arguments)["items"]


class Overlay:
    """What is installed: the site's overlay, the example's script beside the workers, and the images that were asked for.

    It names no namespace for the overlay's objects, because a site's own overlay names none.
    """

    def __init__(self, kubectl, folder, below, images):
        self.kubectl, self.folder, self.below = kubectl, folder / "overlay", pathlib.Path(below)
        self.folder.mkdir()
        shutil.copy(ROOT / "examples/digits/train.py", self.folder)
        self.write(images)

    def write(self, images):
        document = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            # kustomize takes no absolute path.
            "resources": [os.path.relpath(self.below.resolve(), self.folder.resolve())],
            "configMapGenerator": [{"name": "muster-e2e", "namespace": NAMESPACE, "files": ["train.py"], "options": {"disableNameSuffixHash": True}}],
            "patches": self.patches(images),
        }
        (self.folder / "kustomization.yaml").write_text(json.dumps(document, indent=2))

    def patches(self, images):
        workers = {"name": "workers", "volumeMounts": [{"name": "muster-e2e", "mountPath": str(pathlib.Path(SCRIPT).parent)}]}
        install, agent = {"name": "install"}, {"name": "agent"}
        if images.agent:
            install["image"] = agent["image"] = images.agent
        if images.workers:
            workers["image"] = images.workers
        volumes = [{"name": "muster-e2e", "configMap": {"name": "muster-e2e"}}]
        patches = [workload("DaemonSet", "muster-agent", {"initContainers": [install, agent], "containers": [workers], "volumes": volumes})]
        if images.coordinator:
            coordinator = {"name": "coordinator", "image": images.coordinator}
            patches.append(workload("StatefulSet", "muster-coordinator", {"containers": [coordinator]}))
        return [{"patch": json.dumps(patch), "target": target(patch)} for patch in patches]

    def objects(self):
        """What will be there, as (kind, namespace, name). kustomize always writes YAML of this form."""
        found = []
        for document in self.kubectl("kustomize", str(self.folder), timeout=120).split("\n---\n"):
            kind = re.search(r"^kind: (\S+)$", document, re.MULTILINE)[1]
            metadata = re.search(r"^metadata:\n((?:  .*\n?)+)", document, re.MULTILINE)[1]
            name, namespace = (re.search(rf"^  {field}: (\S+)$", metadata, re.MULTILINE) for field in ("name", "namespace"))
            found.append((kind, namespace[1] if namespace else "", name[1]))
        return found

    def apply(self):
        self.kubectl("apply", "--server-side", "-k", str(self.folder), timeout=120)

    def delete(self, timeout):
        # Everything goes at once. The namespace is gone when its pods have ended.
        self.kubectl("delete", "-k", str(self.folder), "--ignore-not-found", f"--timeout={timeout}s", timeout=timeout + 10)


def workload(kind, name, pod):
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": {"template": {"spec": pod}}}


def target(patch):
    return {"kind": patch["kind"], "name": patch["metadata"]["name"]}


class Forward:
    """A port of this machine that leads to the coordinator. It keeps its number when it must be made anew."""

    def __init__(self, kubectl):
        self.kubectl, self.process = kubectl, None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def open(self):
        if not self.runs():
            wait_until(self.leads, 60, "kubectl port-forward leads to the coordinator")

    def runs(self):
        return self.process is not None and self.process.poll() is None

    def leads(self):
        if not self.runs():
            command = [*self.kubectl.command, "-n", NAMESPACE, "port-forward", "svc/muster-coordinator", f"{self.port}:7070"]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            return True
        return False

    def close(self):
        """Also when the coordinator's pod is another one: kubectl goes on with the old one."""
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None


class Muster:
    """The command line of one user, with a configuration of its own."""

    def __init__(self, program, folder, forward):
        self.program, self.forward = program, forward
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
        self.environment = environment | {"MUSTER_CONFIG": str(folder / "config.yaml"), "NO_COLOR": "1"}
        self.url = f"https://localhost:{forward.port}"

    def __call__(self, *arguments, may_fail=False, timeout=60, token=None):
        self.forward.open()
        environment = self.environment | ({"MUSTER_TOKEN": token} if token else {})
        return answer([self.program, *arguments], environment, may_fail, timeout)

    def refusal(self, *arguments):
        """What it says when it is refused."""
        self.forward.open()
        return refusal([self.program, *arguments], self.environment)

    def json(self, *arguments, may_fail=False):
        output = self(*arguments, "-o", "json", may_fail=may_fail, timeout=20)
        return None if output is None else json.loads(output)


class Cluster:
    def __init__(self, kubectl):
        self.kubectl = kubectl
        self.looked = 0

    def pods(self):
        """The living agents' pods by their node."""
        found = self.kubectl.objects("pods", "-n", NAMESPACE, "-l", AGENTS)
        return {pod["spec"]["nodeName"]: pod for pod in found if "deletionTimestamp" not in pod["metadata"] and pod["spec"].get("nodeName")}

    def rolled_out(self, *workloads, timeout):
        for name in workloads:
            self.kubectl("-n", NAMESPACE, "rollout", "status", name, f"--timeout={timeout}s", timeout=timeout + 10)

    def in_coordinator(self, *arguments):
        return self.kubectl("-n", NAMESPACE, "exec", name_of(self.coordinator()), "-c", "coordinator", "--", "muster-coordinator", *arguments).strip()

    def coordinator(self):
        """The pod of the coordinator that decides."""
        leaders = self.kubectl.json("get", "pods", "-n", NAMESPACE, "-l", "muster.dev/leader=true")["items"]
        return leaders[0] if leaders else self.kubectl.json("get", "pod", COORDINATOR, "-n", NAMESPACE)

    def stand_bys(self):
        """How many coordinators wait for their turn."""
        return self.kubectl.json("get", "statefulset", "muster-coordinator", "-n", NAMESPACE)["spec"]["replicas"] - 1

    def jobs_outlive(self, pod):
        """Whether jobs are still known when this pod of a coordinator is gone."""
        volumes = pod["spec"]["volumes"]
        return self.stand_bys() > 0 or any(volume["name"] == "state" and "emptyDir" not in volume for volume in volumes)

    def in_workers(self, pod, script):
        return self.kubectl("-n", NAMESPACE, "exec", pod, "-c", "workers", "--", "sh", "-c", script).strip()

    def beside(self, pod, container, image, script):
        """Runs a shell among the processes of a container whose own image has none. Returns a question: has it ended, and how?"""
        self.looked += 1
        name = f"muster-e2e-{self.looked}"
        self.kubectl(
            *("-n", NAMESPACE, "debug", pod, "--quiet", "--attach=false", "--profile=restricted", f"--image={image}"),
            *(f"--target={container}", f"--container={name}", "--", "sh", "-c", script),
        )  # fmt: skip

        def ended():
            found = self.kubectl.json("get", "pod", pod, "-n", NAMESPACE)["status"].get("ephemeralContainerStatuses", [])
            return next((status["state"] for status in found if status["name"] == name), {}).get("terminated")

        return ended

    def restart_container(self, pod, container, image):
        """Asks its first process to end. The kubelet starts the container again, in the same pod."""
        before = self.started(pod, container)
        # With the first process the kernel ends the shell, too, so how that ended says nothing.
        self.beside(pod, container, image, "kill -TERM 1")
        wait_until(lambda: self.started(pod, container) not in (None, before), 120, f"{container} of {pod} is started again")

    def restarts(self, pod, container):
        return self.container(pod, container)["restartCount"]

    def started(self, pod, container):
        """Which start of the container this is. After a machine was without power, the kubelet may give the same count of restarts twice."""
        return self.container(pod, container).get("containerID")

    def container(self, pod, container):
        status = self.kubectl.json("get", "pod", pod, "-n", NAMESPACE)["status"]
        both = status.get("initContainerStatuses", []) + status.get("containerStatuses", [])
        return next(entry for entry in both if entry["name"] == container)


def answer(command, environment, may_fail, timeout, stdin=None):
    shown = " ".join(shlex.quote(part) for part in map(str, command))
    given = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
    try:
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, **given)
    except subprocess.TimeoutExpired:
        if may_fail:
            return None
        raise NotSo(f"{shown} answers within {timeout} s") from None
    if result.returncode == 0:
        return result.stdout
    if may_fail:
        return None
    raise NotSo(f"{shown} works (exit code {result.returncode})\n{result.stderr.strip()}")


def refusal(command, environment, stdin=None):
    result = subprocess.run(command, env=environment, input=stdin or "", capture_output=True, text=True, timeout=60)
    check(result.returncode != 0, f"{' '.join(command)} is refused")
    return result.stderr.strip()


def wait_until(predicate, timeout, what):
    """The predicate's first true value."""
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise NotSo(f"{what} (waited {timeout} s)")
        time.sleep(0.2)


def check(so, what):
    if not so:
        raise NotSo(what)


def run(command, node=""):
    """One of the commands that break something, or mend it."""
    words = [word.replace("{node}", node) for word in shlex.split(command)]
    check(shutil.which(words[0]), f"{words[0]} is a program")
    result = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    check(result.returncode == 0, f"{' '.join(words)} works (exit code {result.returncode})\n{result.stderr.strip()}")


def name_of(pod):
    return pod["metadata"]["name"]


def scratch():
    return pathlib.Path(tempfile.mkdtemp(prefix="muster-e2e-"))
