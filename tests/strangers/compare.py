"""Public packages in every lane beside plain torchrun: `make strangers`.

Each program of `programs/` runs under plain torchrun, undisturbed and with two kills, and in every lane of Muster, undisturbed and
through two kills, a cut node and a node that joins. A program trains on one sample repeatedly, so that its losses do not depend on
the size of the world. Compared are its losses, the files of its modules, its environment, niceness, flags, data type and restart count,
the job's charges, and the output of `muster logs -f`. It ends with a table, and with exit code 1 if anything differed.

    python tests/strangers/compare.py --programs tables,lightning_ddp --lanes fork
    python tests/strangers/compare.py --measure ...       instead, how long each stands still after a kill: measure.py
"""

import argparse
import contextlib
import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MUSTER = ROOT / "target" / "muster" / "bin" / "muster"
PROGRAMS = sorted(path.stem for path in (HERE / "programs").glob("*.py") if path.stem != "left")
LANES = ("cold", "parked", "fork", "direct", "exec")
PLAIN = "plain torchrun"
# The steps at which the world is held, and what happens there. The first is early: preparations beside training are not done yet.
KILLS = {3: "kill rank 1", 6: "kill rank 0"}
FAULTS = KILLS | {9: "cut", 12: "join"}
LAST = 15
NODES = 3
# Only a failure waits this long. transformers and TRL were seen to import for 40 s on two busy cores, and every rank of a cold start does.
PATIENCE = 300
LOOK = 0.1
# Another size of the world adds the same numbers in another order.
TOLERANCE = 1e-4
# Every generation must show the same values as one of plain torchrun.
SAME = ("nice", "flags", "dtype", "threads", "affinity", "environment")
SETTINGS = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


class Wrong(Exception):
    """A run that was not completed."""


def main():
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = arguments()
    if options.measure:
        import measure

        return measure.run(options)
    table, differences = [], []
    for program in options.programs:
        row, found = everywhere(program, options)
        table.append(row)
        differences += found
    head = ["program", *options.lanes]
    lines = [head, ["---"] * len(head), *table]
    print("\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines))
    print("\n".join(differences) or "No difference was found.")
    return 1 if differences else 0


def everywhere(program, options):
    """Runs one program everywhere. Returns its row of the table, and what differed."""
    with tempfile.TemporaryDirectory(prefix="muster-strangers-") as folder:
        folder = pathlib.Path(folder)
        plain = {}
        for faults in ({}, KILLS):
            plain[len(faults)] = Torchrun(program, folder / f"plain-{len(faults)}", faults).run()
            report(program, PLAIN, faults, plain[len(faults)], [])
        row, differences = [program], []
        for lane in options.lanes:
            found = []
            for faults in ({}, FAULTS):
                run = Job(program, folder / f"{lane}-{len(faults)}", faults, lane).run()
                wrong = run.wrong + compare(plain[min(len(faults), len(KILLS))], run)
                report(program, lane, faults, run, wrong)
                found += [f"{program}, {lane}, {'disturbed' if faults else 'undisturbed'}: {what}" for what in wrong]
            row.append(f"{len(found)} differences" if found else "same")
            differences += found
        return row, differences


def report(program, lane, faults, run, wrong):
    said = "; ".join(wrong[:3]) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else "")
    print(f"{program:22} {lane:14} {'disturbed' if faults else 'undisturbed':11} {run.seconds:4.0f} s  {said or 'as it should be'}", flush=True)


def compare(plain, run):
    """Where a run under Muster left something else than plain torchrun."""
    wrong = []
    expected, losses = plain.losses(), run.losses()
    unlike = [step for step in expected if step not in losses or not math.isclose(losses[step], expected[step], rel_tol=TOLERANCE, abs_tol=1e-6)]
    if unlike:
        step = unlike[0]
        wrong.append(f"{len(unlike)} of {len(expected)} losses differ, first at step {step}: {losses.get(step)} instead of {expected[step]}")
    kind = plain.seen()[0]
    # Plain torchrun counts failures on a node. How it counts a cut or a growth differs from node to node, so counts after those are ignored.
    count, run_ids = 0, set()
    for step, seen in sorted(run.by_step().items()):
        for rank in seen:
            where = f"step {step}, rank {rank['rank']}"
            wrong += [f"{where}: {name} {rank[name]} instead of {kind[name]}" for name in SAME if stable(rank[name], run) != stable(kind[name], plain)]
            other = [name for name, file in kind["files"].items() if rank["files"].get(name, file) != file]
            if other:
                name = other[0]
                wrong.append(f"{where}: {len(other)} modules of other files, such as {name}: {rank['files'][name]} instead of {kind['files'][name]}")
            if count is not None and rank["restarts"] != count:
                wrong.append(f"{where}: TORCHELASTIC_RESTART_COUNT is {rank['restarts']} instead of {count}")
            run_ids.add(rank["run id"])
        if step in run.faults:
            count = count + 1 if count is not None and step in KILLS else None
    if len(run_ids) > 1:
        wrong.append(f"TORCHELASTIC_RUN_ID was {len(run_ids)} different ones")
    return wrong


def stable(value, run):
    """The value without the names of the run's own folder."""
    return json.dumps(value, sort_keys=True).replace(str(run.left), "FOLDER")


class Run:
    """One program from its start to its end, through faults."""

    def __init__(self, program, folder, faults):
        self.program, self.folder, self.faults = program, folder, faults
        self.left = folder / "left"
        self.left.mkdir(parents=True)
        self.wrong, self.seconds = [], 0.0
        self.hold(min(faults, default=LAST))

    def command(self):
        return [str(HERE / "programs" / f"{self.program}.py"), str(self.left), str(LAST)]

    def hold(self, step):
        part = self.folder / "until"
        part.write_text(str(step))
        part.replace(self.left / "until")

    def seen(self):
        """What all ranks left, in any order."""
        found = []
        for path in self.left.glob("*.*.json"):
            with contextlib.suppress(OSError):
                found.append(json.loads(path.read_text()) | {"rank": int(path.name.partition(".")[0])})
        return found

    def by_step(self):
        steps = {}
        for rank in self.seen():
            steps.setdefault(rank["step"], []).append(rank)
        return steps

    def world(self, step, size=None):
        """The ranks of the world that is held at that step, when all of them are there."""
        ranks = [rank for rank in self.seen() if rank["step"] == step and alive(rank["pid"]) and size in (None, rank["world"])]
        whole = ranks and sorted(rank["rank"] for rank in ranks) == list(range(ranks[0]["world"]))
        return sorted(ranks, key=lambda rank: rank["rank"]) if whole else None

    def losses(self):
        try:
            lines = (self.left / "losses.txt").read_text().splitlines()
        except FileNotFoundError:
            return {}
        return {int(step): float(loss) for step, loss in (line.split() for line in lines)}

    def environment(self):
        """The environment without variables that plain torchrun would pass on and Muster would not."""
        foreign = ("MUSTER_", "PET_", "TORCH", "HF_", "PYTHON")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        return clean | SETTINGS

    def run(self):
        began = time.monotonic()
        try:
            self.start()
            stops = sorted(self.faults)
            for step, after in zip(stops, [*stops[1:], LAST]):
                ranks = self.until(f"held at step {step}", lambda: self.world(step))
                self.strike(self.faults[step], ranks)
                if self.faults[step] == "join":
                    self.until("grown", lambda: self.world(step + 1, len(ranks) + 1))
                # It must not be earlier, or the old world would train on before it is struck.
                self.hold(after)
            self.until("over", self.is_over)
            self.check()
        except Wrong as problem:
            self.wrong.append(str(problem))
        finally:
            self.stop()
        self.seconds = time.monotonic() - began
        return self

    def until(self, what, look):
        deadline = time.monotonic() + PATIENCE
        while not (found := look()):
            if time.monotonic() > deadline or (what != "over" and self.is_over()):
                raise Wrong(f"not {what}{self.evidence()}")
            time.sleep(LOOK)
        return found


class Torchrun(Run):
    """Plain torchrun, two ranks on this machine."""

    def start(self, *more):
        log = open(self.folder / "log", "w")
        # With the store of the previous attempt the next one often never meets.
        environment = self.environment() | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        flags = ["--standalone", "--nproc-per-node=2", f"--max-restarts={len(self.faults)}", *more]
        command = [sys.executable, "-m", "torch.distributed.run", *flags, *self.command()]
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def strike(self, fault, ranks):
        os.kill(ranks[int(fault.split()[-1])]["pid"], signal.SIGKILL)

    def is_over(self):
        return self.process.poll() is not None

    def check(self):
        if self.process.returncode:
            raise Wrong(f"exit code {self.process.returncode}{self.evidence()}")

    def evidence(self):
        return "\n" + (self.folder / "log").read_text()[-3000:]

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()
        if self.wrong:
            sys.exit(f"{self.program} does not run under plain torchrun: {self.wrong[0]}")


class Job(Run):
    """The same under Muster, on a local cluster of its own."""

    nodes, ranks = NODES, 1  # ranks of each node
    restarts = len(KILLS)

    def __init__(self, program, folder, faults, lane):
        super().__init__(program, folder, faults)
        self.lane = lane
        self.cluster = folder / "cluster"
        self.follower = None

    def muster(self, *arguments):
        environment = self.environment() | {"MUSTER_LOCAL_DIR": str(self.cluster), "NO_COLOR": "1"}
        result = subprocess.run([MUSTER, *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if result.returncode:
            raise Wrong(f"muster {' '.join(arguments)}: {result.stderr.strip()}")
        return result.stdout

    def start(self):
        self.muster("local", "up", "--nodes", str(self.nodes))
        spec = {
            "replicas": self.nodes, "minReplicas": min(2, self.nodes), "maxReplicas": self.nodes, "procPerNode": self.ranks, "gpusPerNode": 0, "launch": self.lane,
            "command": [sys.executable], "args": self.command(), "workingDir": os.getcwd(),
            "env": [{"name": name, "value": value} for name, value in SETTINGS.items()],
            "restartPolicy": {"maxRestarts": self.restarts}, "scaleUpCooldown": "0s", "stopGracePeriod": "1s",
        }  # fmt: skip
        document = {"apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": {"name": "job"}, "spec": spec}
        (self.folder / "job.json").write_text(json.dumps(document))
        self.muster("submit", "-f", str(self.folder / "job.json"))
        environment = self.environment() | {"MUSTER_LOCAL_DIR": str(self.cluster)}
        with open(self.folder / "followed", "w") as followed:
            self.follower = subprocess.Popen([MUSTER, "logs", "job", "-f"], env=environment, stdout=followed, stderr=subprocess.DEVNULL)

    def status(self):
        return json.loads(self.muster("get", "job", "job", "-o", "json"))["status"]

    def strike(self, fault, ranks):
        if fault == "cut":
            self.muster("local", "kill-node", self.status()["members"][-1]["node"])
        elif fault == "join":
            self.muster("local", "add-node")
        else:
            os.kill(ranks[int(fault.split()[-1])]["pid"], signal.SIGKILL)

    def is_over(self):
        return self.status()["phase"] in ("Succeeded", "Failed", "Cancelled")

    def check(self):
        status = self.status()
        if (status["phase"], status["restarts"]) != ("Succeeded", len(self.faults)):
            self.wrong.append(f"{status['phase']} after {status['restarts']} restarts instead of {len(self.faults)}: {status.get('message')}")
        incidents = json.loads(self.muster("explain", "job", "-o", "json"))["incidents"]
        charged = [incident["cause"] for incident in incidents if incident["charged"] == "job"]
        kills = ["WorkerKilled" for fault in self.faults.values() if fault in KILLS.values()]
        if charged != kills:
            self.wrong.append(f"charged to the job: {charged} instead of {kills}")
        self.follower.wait(PATIENCE)
        printed = (self.folder / "followed").read_text()
        missing = [step for step in self.losses() if f"step={step} " not in printed]
        if missing:
            self.wrong.append(f"logs -f lost {len(missing)} of {len(self.losses())} steps: {missing}")

    def evidence(self):
        with contextlib.suppress(Wrong):
            return "\n" + self.muster("explain", "job") + self.muster("logs", "job", "--tail", "5")
        return ""

    def stop(self):
        if self.follower and self.follower.poll() is None:
            self.follower.kill()
        try:
            self.muster("local", "down")
        except Wrong as problem:
            self.wrong.append(str(problem))
        shutil.rmtree(self.cluster, ignore_errors=True)


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def arguments():
    def some_of(known):
        def read(text):
            unknown = [word for word in text.split(",") if word not in known]
            if unknown:
                raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are: {', '.join(known)}")
            return text.split(",")

        return read

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=some_of(PROGRAMS), default=PROGRAMS, help=",".join(PROGRAMS) + " [all]")
    parser.add_argument("--lanes", type=some_of(LANES), default=list(LANES), help=",".join(LANES) + " [all]")
    parser.add_argument("--measure", action="store_true", help="measure the time after a kill instead of comparing")
    parser.add_argument("--rounds", type=int, default=2, help="of --measure [2]")
    parser.add_argument("--write", action="store_true", help="write what --measure found into RESULTS.md and results.json")
    options = parser.parse_args()
    if not MUSTER.exists():
        parser.error(f"{MUSTER} is not there: run make build first")
    return options


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
