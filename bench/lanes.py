"""One worker killed, again and again in one job, for each launch lane: milliseconds from SIGKILL to the first all-reduce of the new world.

    python bench/lanes.py [--nodes 4] [--kills 5] [--lanes cold,parked,fork] [--programs target/debug]

Run it with an interpreter that has PyTorch. The clock is CLOCK_MONOTONIC, as in step.py; the time is that of the slowest member. Beside it stand
the phases that Muster measures itself (`muster explain`). A kill is dealt once every node shows its spare launcher, or after --settle seconds.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
PHASES = ["detectMs", "decideMs", "stopMs", "launchMs", "joinMs", "firstStepMs"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--lanes", default="cold,parked,fork")
    parser.add_argument("--settle", type=float, default=3.0)
    parser.add_argument("--programs", type=pathlib.Path, default=HERE.parent / "target" / "debug")
    options = parser.parse_args()
    for lane in options.lanes.split(","):
        totals, phases = race(lane, options)
        shown = " ".join(f"{total:.0f}" for total in totals)
        spread = f"median {statistics.median(totals):.0f} min {min(totals):.0f} max {max(totals):.0f} ms"
        print(f"{lane:7} {spread}   ({shown})")
        for phase in PHASES:
            values = [incident[phase] for incident in phases if incident.get(phase) is not None]
            if values:
                print(f"        {phase:12} median {statistics.median(values):.0f}")


def race(lane, options):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-lanes-"))
    steps = folder / "steps"
    steps.mkdir()

    def muster(*arguments):
        environment = dict(os.environ, MUSTER_LOCAL_DIR=str(folder / "cluster"))
        return subprocess.run([options.programs / "muster", *arguments], env=environment, check=True, capture_output=True, text=True).stdout

    try:
        muster("local", "up", "--nodes", str(options.nodes))
        spec = {"replicas": options.nodes, "procPerNode": 1, "gpusPerNode": 0, "command": [sys.executable], "launch": lane}
        spec |= {"args": [str(HERE / "step.py"), str(steps)], "workingDir": str(HERE), "restartPolicy": {"maxRestarts": 100}}
        spec |= {"env": [{"name": "OMP_NUM_THREADS", "value": "1"}]}
        document = {"apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": {"name": "race"}, "spec": spec}
        totals, incidents = [], []
        for number in range(options.kills):
            # A job for each kill: the second failure of one waits for its restart back-off.
            document["metadata"]["name"] = name = f"race-{number}"
            (folder / "job.json").write_text(json.dumps(document))
            began = time.monotonic_ns()
            muster("submit", "-f", str(folder / "job.json"))
            members = world(steps, options.nodes, began, 90)
            await_spares(folder, options, lane)
            struck = time.monotonic_ns()
            os.kill(members[-1][0], signal.SIGKILL)
            members = world(steps, options.nodes, struck, 90, {pid for pid, _ in members})
            totals.append((max(at for _, at in members) - struck) / 1e6)
            time.sleep(0.5)
            incidents.append(json.loads(muster("explain", name, "-o", "json"))["incidents"][-1])
            muster("cancel", name)
            time.sleep(1)
        return totals, incidents
    finally:
        try:
            muster("local", "down")
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def await_spares(folder, options, lane):
    """Until every node has a spare that has imported all it will, or the time is over."""
    deadline = time.monotonic() + 30
    time.sleep(options.settle)
    while lane != "cold" and time.monotonic() < deadline:
        if len(list((folder / "cluster" / "nodes").glob("*/state/runs/*-spare-*/parked"))) >= options.nodes:
            return
        time.sleep(0.1)


def world(steps, size, since, patience, gone=frozenset()):
    """(pid, time of the first all-reduce after `since`) of each rank of a world of `size`, in rank order."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        firsts = {}
        for file in steps.glob("*.steps"):
            pid = int(file.stem)
            if pid in gone:
                continue
            for line in file.read_text().splitlines():
                words = line.split()
                if len(words) == 5 and int(words[0]) > since:
                    firsts.setdefault(words[4], {})[int(words[3])] = (pid, int(words[0]))
                    break
        for members in firsts.values():
            if len(members) == size:
                return [members[rank] for rank in sorted(members)]
        time.sleep(0.02)
    raise TimeoutError(f"no world of {size} within {patience} s")


main()
