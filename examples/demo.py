"""The story of Muster on one machine, told with the real command line: train, break things, recover, explain.

`make demo` builds what is needed and runs this. Every step is announced in one line and then checked against the JSON that `muster`
answers. The first failed check ends the demo with a non-zero exit code. The printed figures are measured in this run. Whatever happens,
Ctrl-C included, the local cluster is taken down and nothing is left running.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MUSTER = ROOT / "target" / "muster" / "bin" / "muster"
JOB = "digits"
# One epoch is 23 steps. A step with the real images takes a few milliseconds, so training would be over before anything can be broken.
# 100 ms stand in for a model's step. 26 epochs are then about a minute of training, twice what the story needs.
EPOCHS, STEP_DELAY_MS = 26, 100
# A re-form imports torch anew in every process: about 9 s with three nodes on two quiet cores. This limit is generous.
FORM_TIMEOUT = 60


class NotSo(Exception):
    """A promise of the demo does not hold."""


def main():
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # on SIGTERM, take the cluster down too
    if not MUSTER.exists():
        sys.exit(f"{MUSTER} is not there: run make build first")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-demo-"))
    began = time.monotonic()
    cluster = Cluster(folder)
    code = 1
    try:
        story(cluster, folder)
        code = 0
    except NotSo as problem:
        print(f"\nNOT SO: {problem}", file=sys.stderr)
        cluster.show_evidence()
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        code = 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        clean = cluster.take_down()
    if not clean:
        code = code or 1
    if code == 0:
        shutil.rmtree(folder)
        print(f"\nAll of it was so. {time.monotonic() - began:.0f} s in all.")
    else:
        print(f"logs and state of this run are kept in {folder}", file=sys.stderr)
    return code


def story(cluster, folder):
    checkpoint = folder / "checkpoint" / "checkpoint.pt"

    say("three nodes and a coordinator, each its own process on loopback")
    cluster.muster("local", "up", "--nodes", "3")
    cluster.up = True
    wait_until(lambda: len(cluster.ready_nodes()) == 3, 15, "three nodes are ready")
    done(", ".join(sorted(cluster.ready_nodes())))

    say(f"submit {JOB}: 3 nodes wanted, 2 at least, 4 at most")
    submitted = time.monotonic()
    cluster.muster("submit", "-f", str(write_job(folder, checkpoint.parent)))
    status = cluster.training(nodes=3, newer_than=0, since=submitted)
    cluster.made_progress(status, 3)

    victim = next(rank for rank in cluster.status()["ranks"] if rank["rank"] != 0)
    say(f"kill -9 the worker of rank {victim['rank']} on {victim['node']} (pid {victim['pid']})")
    generation, broken = cluster.status()["generation"], time.monotonic()
    os.kill(victim["pid"], signal.SIGKILL)
    status = cluster.training(nodes=3, newer_than=generation, since=broken)
    check(status["generation"] == generation + 1, f"one new generation, not {status['generation'] - generation}")
    cluster.made_progress(status, 3)

    lost = rank_of(status, 0)["node"]
    say(f"cut the power of {lost}, which holds rank 0: SIGKILL to its agent, runner and workers at once")
    generation, broken = cluster.status()["generation"], time.monotonic()
    cluster.muster("local", "kill-node", lost)
    status = cluster.training(nodes=2, newer_than=generation, since=broken)
    check(lost not in {rank["node"] for rank in status["ranks"]}, f"{lost} is out of the job")
    cluster.made_progress(status, 3)

    say("a new node joins; the job wants three, so it grows by itself")
    generation, joined = cluster.status()["generation"], time.monotonic()
    before = cluster.ready_nodes()
    cluster.muster("local", "add-node")
    status = cluster.training(nodes=3, newer_than=generation, since=joined)
    fresh = {rank["node"] for rank in status["ranks"]} & (cluster.ready_nodes() - before)
    check(fresh, "the new node is a member")
    cluster.made_progress(status, 3)

    control_plane_dies(cluster, checkpoint)

    say(f"muster scale {JOB} --nodes 2")
    generation, asked = cluster.status()["generation"], time.monotonic()
    cluster.muster("scale", JOB, "--nodes", "2")
    status = cluster.training(nodes=2, newer_than=generation, since=asked)
    cluster.made_progress(status, 3)

    say("the job trains to its end")
    cluster.muster("wait", JOB, "--for=complete", "--timeout=120s", timeout=130)
    status = cluster.status()
    check(status["phase"] == "Succeeded", f"the job succeeded (it is {status['phase']}: {status.get('message')})")
    line = next((line for line in cluster.muster("logs", JOB, "--rank", "0").splitlines() if "test accuracy" in line), None)
    check(line, "rank 0 printed its accuracy")
    line = line[line.index("test accuracy") :]
    accuracy = float(line.split()[2])
    check(accuracy >= 0.95, f"at least 95 % of the test images are read right ({accuracy})")
    done(line)

    say(f"muster explain {JOB}")
    print(cluster.muster("explain", JOB), flush=True)
    check_receipts(cluster.json("explain", JOB)["incidents"])


def control_plane_dies(cluster, checkpoint):
    before = cluster.status()
    orphan = rank_of(before, 0)["node"]
    say(f"kill -9 the coordinator and the agent of {orphan}; the workers must not notice")
    cluster.muster("local", "kill-coordinator")
    cluster.muster("local", "kill-agent", orphan)
    # The control plane cannot be asked now. The job's own checkpoint can: two new ones mean at least one whole epoch.
    seen = changed_at(checkpoint)
    alone = time.monotonic()
    for _ in range(2):
        wait_until(lambda: changed_at(checkpoint) != seen, 30, "the job writes a checkpoint without a control plane")
        seen = changed_at(checkpoint)
    check(processes(before) == alive(processes(before)), "all workers are alive")
    done(f"trained on alone for {time.monotonic() - alone:.1f} s")

    say("both come back")
    returned = time.monotonic()
    cluster.muster("local", "start-coordinator")
    cluster.muster("local", "start-agent", orphan)

    def right_again():
        status = cluster.status(may_fail=True)
        return (
            status
            and status["phase"] == "Running"
            and status["nodesRunning"] == 3
            and processes(status) == processes(before)
            and (status.get("lastStep") or 0) > before["lastStep"]
            and len(cluster.ready_nodes(may_fail=True)) == 3
            and status
        )

    status = wait_until(right_again, 5, "status is right again within 5 s, with the same worker pids")
    took = time.monotonic() - returned
    check(status["generation"] == before["generation"], "nothing was re-formed")
    cluster.made_progress(status, 5)
    after = cluster.status()
    check(after["generation"] == before["generation"] and processes(after) == processes(before), "and it stays so")
    done(f"status right after {took:.1f} s; same generation {after['generation']}, same pids {sorted(p for _, _, p in processes(after))}")


def check_receipts(incidents):
    causes = [incident["cause"] for incident in incidents]
    expected = ["FirstStart", "WorkerKilled", "NodeLost", "NodeJoined", "Scaled"]
    check(causes == expected, f"there is one receipt for each event, in order: {expected} (there are {causes})")
    for incident in incidents:
        keys = ["decideMs", "launchMs", "joinMs", "firstStepMs"]
        if incident["cause"] != "FirstStart":  # before it there was nothing to detect, to stop or to lose
            keys += ["detectMs", "stopMs", "stepsLost"]
        missing = [key for key in keys if incident.get(key) is None]
        check(not missing, f"the receipt of {incident['cause']} has every figure (missing: {missing})")


class Cluster:
    def __init__(self, folder):
        self.folder = folder / "cluster"
        self.up = False
        # Settings of the user for another cluster must not lead the demo there.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
        self.environment = environment | {"MUSTER_LOCAL_DIR": str(self.folder), "NO_COLOR": "1"}

    def muster(self, *arguments, may_fail=False, timeout=60):
        """What `muster` prints on stdout. None if it was allowed to fail and did, or did not answer in time."""
        command = [str(MUSTER), *arguments]
        try:
            result = subprocess.run(
                command, env=self.environment, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout
            )
        except subprocess.TimeoutExpired:
            if may_fail:
                return None
            raise NotSo(f"muster {' '.join(arguments)} answers within {timeout} s") from None
        if result.returncode == 0:
            return result.stdout
        if may_fail:
            return None
        raise NotSo(f"muster {' '.join(arguments)} works (exit code {result.returncode})\n{result.stderr.strip()}")

    def json(self, *arguments, may_fail=False):
        output = self.muster(*arguments, "-o", "json", may_fail=may_fail, timeout=5)
        return None if output is None else json.loads(output)

    def status(self, may_fail=False):
        job = self.json("get", "job", JOB, may_fail=may_fail)
        return job and job["status"]

    def ready_nodes(self, may_fail=False):
        nodes = self.json("get", "nodes", may_fail=may_fail) or {"items": []}
        return {node["metadata"]["name"] for node in nodes["items"] if node["status"]["state"] == "Ready"}

    def training(self, nodes, newer_than, since):
        """Waits until a generation newer than the given one trains with that many nodes. Returns how long that took."""

        def so():
            status = self.status()
            check(status["phase"] not in ("Failed", "Cancelled"), f"the job goes on (it is {status['phase']}: {status.get('message')})")
            check(status["phase"] != "Succeeded", "the job has work left; this machine outran the story, raise EPOCHS")
            ranks = status.get("ranks") or []
            return (
                status["generation"] > newer_than
                and status["phase"] == "Running"
                and status["worldSize"] == nodes == len(ranks)
                and rank_of(status, 0).get("lastStep") is not None
                and status
            )

        status = wait_until(so, FORM_TIMEOUT, f"{nodes} nodes train in a generation after {newer_than}")
        members = ", ".join(f"{rank['rank']}={rank['node']}" for rank in sorted(status["ranks"], key=lambda rank: rank["rank"]))
        done(f"first step after {time.monotonic() - since:.1f} s: generation {status['generation']}, world {nodes} ({members})")
        return status

    def made_progress(self, status, steps):
        goal = status["lastStep"] + steps
        wait_until(lambda: self.status()["lastStep"] >= goal, 30, f"step {goal} is made")

    def show_evidence(self):
        for arguments in (("get", "nodes"), ("describe", "job", JOB), ("explain", JOB)):
            output = self.muster(*arguments, may_fail=True, timeout=10)
            print(f"\n$ muster {' '.join(arguments)}\n{output or '(no answer)'}", file=sys.stderr)

    def take_down(self):
        """True if nothing is left behind."""
        problem = None
        try:
            self.muster("local", "down")
            wait_until(lambda: not self.left_over(), 10, "local down leaves no process behind")
        except NotSo as not_so:
            problem = not_so
        for pid in self.left_over():
            print(f"left over and killed now: {pid} {command_line(pid)}", file=sys.stderr)
            os.kill(pid, signal.SIGKILL)
        if problem and self.up:
            print(f"\nNOT SO: {problem}", file=sys.stderr)
            return False
        return True

    def left_over(self):
        """Processes that name this run's own folder, as all daemons, runners, torchruns and workers do."""
        return [
            int(entry.name)
            for entry in pathlib.Path("/proc").iterdir()
            if entry.name.isdigit() and int(entry.name) != os.getpid() and str(self.folder.parent) in command_line(entry.name)
        ]


def write_job(folder, checkpoints):
    """The job of examples/digits/job.yaml, with this interpreter and this run's checkpoint folder. JSON is YAML."""
    document = {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "MusterJob",
        "metadata": {"name": JOB, "namespace": "default"},
        "spec": {
            "replicas": 3,
            "minReplicas": 2,
            "maxReplicas": 4,
            "procPerNode": 1,
            "gpusPerNode": 0,
            "command": [sys.executable],
            "args": [
                *("examples/digits/train.py", "--checkpoint-dir", str(checkpoints)),
                *("--epochs", str(EPOCHS), "--step-delay-ms", str(STEP_DELAY_MS)),
            ],
            "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
            "workingDir": str(ROOT),
            "restartPolicy": {"maxRestarts": 10, "window": "10m"},
            "stopGracePeriod": "10s",
            "scaleUpCooldown": "5s",
            "launch": "auto",
        },
    }
    path = folder / "job.json"
    path.write_text(json.dumps(document, indent=2))
    return path


def rank_of(status, rank):
    return next((entry for entry in status["ranks"] if entry["rank"] == rank), {})


def processes(status):
    return {(rank["rank"], rank["node"], rank["pid"]) for rank in status.get("ranks") or []}


def alive(ranks):
    return {entry for entry in ranks if command_line(entry[2])}


def command_line(pid):
    """The command line. Empty for a process that is gone or a zombie."""
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def changed_at(path):
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def wait_until(predicate, timeout, what):
    """The predicate's first true value."""
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise NotSo(f"{what} (waited {timeout} s)")
        time.sleep(0.1)


def check(so, what):
    if not so:
        raise NotSo(what)


def say(what):
    print(f"\n==> {what}", flush=True)


def done(what):
    print(f"    {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
