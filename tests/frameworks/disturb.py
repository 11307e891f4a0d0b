"""Real frameworks through real faults: `make frameworks`.

Each case of `cases/` runs twice on a local cluster of its own: undisturbed, and with members killed and nodes cut. The second run must
end with the number that the first one ends with, and `muster explain` must name the cause and the culprit of each break. It ends with
a table, and with exit code 1 if anything was wrong.

    python tests/frameworks/disturb.py --cases jax
"""

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MUSTER = ROOT / "target" / "muster" / "bin" / "muster"
FILES = sorted(path.stem for path in (HERE / "cases").glob("*.py"))
PAGE = ROOT / "tests" / "frameworks" / "RESULTS.md"
BEGIN, END = "<!-- table:begin -->", "<!-- table:end -->"
HEAD = ["framework", "version", "what was done", "re-form, s", "steps repeated", "culprit right", "end"]
# Only a failure waits this long. TensorFlow needs 10 s to start on two busy cores, and notices a silent peer after 9 s.
PATIENCE = 180
LOOK = 0.1
# Steps of a new generation before the next strike. Programs save every fifth step, so some steps are lost.
PROGRESS = 9
OVER = ("Succeeded", "Failed", "Cancelled")


class Wrong(Exception):
    """A run that was not completed."""


def main():
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = arguments()
    sys.path.insert(0, str(HERE))
    rows, wrong = [], []
    for file in options.cases:
        for case in (case for case in load(file) if options.named in case.name):
            found = Measured(case, environment(case))
            rows += found.rows
            wrong += found.wrong
    print("\n" + table(rows))
    print("\n".join(wrong) or "All of them ended as if nothing had happened.")
    if options.write and not wrong:
        write(rows)
    return 1 if wrong else 0


def load(file):
    spec = importlib.util.spec_from_file_location(f"cases_{file}", HERE / "cases" / f"{file}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CASES


def environment(case):
    """The interpreter of the case's packages, made if it is not there yet."""
    kind = "--with-torch" if case.with_torch else "--requirements"
    command = [ROOT / "tools" / "python-env", kind, HERE / "packages" / case.packages]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


class Measured:
    """One case, undisturbed and disturbed."""

    def __init__(self, case, python):
        self.case, self.rows, self.wrong = case, [], []
        if case.prepare:
            subprocess.run([python, HERE / "programs" / case.prepare], check=True, stdout=subprocess.DEVNULL)
        version = self.version(python)
        with tempfile.TemporaryDirectory(prefix="muster-frameworks-") as folder:
            plain = Run(case, python, pathlib.Path(folder) / "plain", ()).run()
            self.say(plain, "undisturbed")
            self.rows.append([case.name, version, "undisturbed", "", "", "", plain.end or "none"])
            struck = Run(case, python, pathlib.Path(folder) / "struck", case.strikes).run()
            if plain.end and struck.end and not close(plain.end, struck.end, case.tolerance):
                struck.wrong.append(f"ended with {struck.end} instead of {plain.end}")
            self.say(struck, "disturbed")
            for number, blow in enumerate(struck.blows):
                end = (struck.end or "none") if number == len(struck.blows) - 1 else ""
                right = {True: "yes", False: "no", None: ""}[blow.right]
                self.rows.append(["", "", blow.words, seconds(blow.receipt), repeated(blow.receipt), right, end])

    def say(self, run, how):
        said = "; ".join(run.wrong) or "as it should be"
        print(f"{self.case.name:34} {how:12} {run.seconds:4.0f} s  {said}", flush=True)
        # The evidence was shown already.
        self.wrong += [f"{self.case.name}, {how}: {what.splitlines()[0]}" for what in run.wrong]

    def version(self, python):
        look = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
        return subprocess.run([python, "-c", look, self.case.package], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def close(one, other, tolerance):
    return one == other if not tolerance else abs(float(one) - float(other)) <= tolerance * abs(float(one))


def seconds(receipt):
    return "" if receipt is None or receipt["totalMs"] is None else f"{receipt['totalMs'] / 1000:.1f}"


def repeated(receipt):
    return "" if receipt is None or receipt["stepsLost"] is None else str(receipt["stepsLost"])


class Blow:
    """A strike that has hit: what it was, what `explain` must say, and what it says."""

    def __init__(self, strike, status):
        self.words, self.expected = strike.named(status), strike.expected(status)
        self.alone = strike.alone
        self.receipt, self.right = None, None


class Run:
    """One job from its start to its end, through strikes."""

    def __init__(self, case, python, folder, strikes):
        self.case, self.python, self.folder, self.strikes = case, python, folder, strikes
        self.state = folder / "state"
        self.state.mkdir(parents=True)
        self.cluster = folder / "cluster"
        self.wrong, self.blows, self.seconds, self.end = [], [], 0.0, None
        self.members = case.members

    def run(self):
        began = time.monotonic()
        try:
            self.start()
            generation = 0
            for strike in self.strikes:
                status = self.until(f"trained in a generation after {generation}", lambda: self.trains(generation))
                generation = status["generation"]
                self.blows.append(Blow(strike, status))
                strike.strike(status, self.muster)
                if strike.alone:
                    self.until("whole again", lambda: strike.is_answered(status, self.status()))
                    generation -= 1
                self.members = strike.members(self.members)
            self.until("over", self.is_over)
            self.check()
        except Wrong as problem:
            self.wrong.append(str(problem))
        finally:
            self.stop()
        self.seconds = time.monotonic() - began
        return self

    def start(self):
        self.muster("local", "up", "--nodes", str(self.case.nodes))
        job = self.case.job
        words = {
            "PYTHON": self.python, "ENVIRONMENT": pathlib.Path(self.python).parent.parent,
            "PROGRAM": HERE / "programs" / self.case.program, "FOLDER": self.state, "STEPS": self.case.steps,
        }  # fmt: skip
        for word, value in words.items():
            job = re.sub(rf"\b{word}\b", str(value), job)
        (self.folder / "job.yaml").write_text(job)
        self.muster("submit", "-f", str(self.folder / "job.yaml"))

    def muster(self, *arguments):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
        clean |= {"MUSTER_LOCAL_DIR": str(self.cluster), "NO_COLOR": "1"}
        result = subprocess.run([MUSTER, *arguments], env=clean, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if result.returncode:
            raise Wrong(f"muster {' '.join(arguments)}: {result.stderr.strip()}")
        return result.stdout

    def status(self):
        return json.loads(self.muster("get", "job", "job", "-o", "json"))["status"]

    def trains(self, after):
        """The status, if a generation later than this one has made some steps of its own."""
        status = self.status()
        ranks = {rank["rank"]: rank for rank in status["ranks"]}

        def steps(rank):
            first, last = ranks[rank]["firstStep"], ranks[rank]["lastStep"]
            return 0 if first is None else last - first

        new = status["generation"] > after and status["phase"] == "Running" and len(ranks) == self.members
        return status if new and all(rank["pid"] for rank in ranks.values()) and all(steps(rank) >= PROGRESS for rank in self.case.stepping if rank in ranks) else None

    def is_over(self):
        status = self.status()
        if status["generation"] > sum(not blow.alone for blow in self.blows) + 1:
            raise Wrong(f"broke by itself{self.evidence()}")
        return status["phase"] in OVER

    def until(self, what, look):
        deadline = time.monotonic() + PATIENCE
        while not (found := look()):
            if time.monotonic() > deadline or (self.is_over() and what != "over"):
                raise Wrong(f"not {what}{self.evidence()}")
            time.sleep(LOOK)
        return found

    def check(self):
        status = self.status()
        if status["phase"] != "Succeeded":
            raise Wrong(f"{status['phase']}: {status['message']}{self.evidence()}")
        # horovodrun and its mpirun put rank and stream before each line, and anew wherever a line came in two parts.
        said = re.sub(r"\[(1,)?\d+\]<stdout>:", "", self.muster("logs", "job", "--rank", str(self.case.ends)))
        ends = re.findall(r"^end (\S+)$", said, re.MULTILINE)
        self.end = ends[-1] if ends else None
        if not ends:
            self.wrong.append(f"rank {self.case.ends} printed no end{self.evidence()}")
        incidents = json.loads(self.muster("explain", "job", "-o", "json"))["incidents"]
        breaks = [incident for incident in incidents if incident["cause"] != "FirstStart"]
        for blow, receipt in zip(self.blows, breaks):
            said = (receipt["cause"], receipt["culprit"], receipt["charged"])
            blow.receipt, blow.right = receipt, said == blow.expected
            if receipt.get("restartedRanks", []) != blow.alone:
                self.wrong.append(f"{blow.words}: {receipt.get('restartedRanks', [])} were started again alone instead of {blow.alone}")
            if not blow.right:
                self.wrong.append(f"{blow.words}: explain says {said} instead of {blow.expected}: {receipt['message']}")
        if len(breaks) != len(self.blows):
            self.wrong.append(f"{len(breaks)} breaks instead of {len(self.blows)}: {[incident['message'] for incident in breaks]}")

    def evidence(self):
        with contextlib.suppress(Wrong):
            return "\n" + self.muster("explain", "job") + self.muster("logs", "job", "--tail", "8") + self.muster("logs", "job", "--previous", "--tail", "8")
        return ""

    def stop(self):
        try:
            self.muster("local", "down")
        except Wrong as problem:
            self.wrong.append(str(problem))
        shutil.rmtree(self.cluster, ignore_errors=True)


def table(rows):
    lines = [HEAD, ["---"] * len(HEAD), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write(rows):
    """Puts these rows into the page. Cases that were not run keep theirs."""
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    shown, after = rest.split(END)
    kept = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.strip().splitlines()[2:]]
    of_case = by_case(kept) | by_case(rows)
    order = [case.name for file in FILES for case in load(file)]
    PAGE.write_text(f"{before}{BEGIN}\n{table([row for name in order for row in of_case.get(name, [])])}\n{END}{after}")


def by_case(rows):
    """The rows of each case. Only the first of them has its name."""
    found, name = {}, None
    for row in rows:
        name = row[0] or name
        found.setdefault(name, []).append(row)
    return found


def arguments():
    def some_of(text):
        unknown = [word for word in text.split(",") if word not in FILES]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are: {', '.join(FILES)}")
        return text.split(",")

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=some_of, default=FILES, help=",".join(FILES) + " [all]")
    parser.add_argument("--named", default="", metavar="TEXT", help="only cases whose name contains this")
    parser.add_argument("--write", action="store_true", help="put the rows into tests/frameworks/RESULTS.md, if all was right")
    options = parser.parse_args()
    if not MUSTER.exists():
        parser.error(f"{MUSTER} is not there: run make build first")
    return options


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
