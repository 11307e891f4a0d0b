"""A killed worker on a machine with a GPU: every lane of Muster, and torchrun with its best tuning, in the same run.

    python bench/gpu.py                     print the table
    python bench/gpu.py --write            and write it into bench/results/README.md
    python bench/gpu.py --lanes fork --kills 1
    python bench/gpu.py --scripts small,gpt,compile,trainer --lanes auto,fork --standbys off,open --kills 3

One rank trains on one GPU over NCCL: a small model (`gpu_step.py`), a GPT with a checkpoint of 600 MB, the same under torch.compile
(`gpu_gpt.py`), or transformers' Trainer (`gpu_trainer.py`). It is killed several times. Measured is the time until the next start has made
a step. With standbys, each kill waits until one stands by, and the steps that are made while the first is prepared are counted beside those of as
long a time after it.
Two things are checked as well: a launcher lives through all of it and must not have a GPU's device file open, and the GPU's memory must be
free when the job is over. If either check fails, the exit code is 1.
"""

import argparse
import datetime
import functools
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import processes
import race
import report
import stacks

BEGIN, END = "<!-- gpu:begin -->", "<!-- gpu:end -->"
# `auto` is what a job gets that says nothing: its lane, and its standbys.
LANES = ("auto", "fork", "direct", "parked", "exec", "cold")
STANDBYS = ("off", "parked", "open")
# The scripts, each with its further arguments.
PROGRAMS = {"small": ("gpu_step.py",), "gpt": ("gpu_gpt.py",), "compile": ("gpu_gpt.py", "compile"), "trainer": ("gpu_trainer.py",)}
TORCHRUN = "torchrun, best tuning"
# A first start that reads torch from the disk was seen to take 15 s.
PATIENCE = 180
LOOK = 0.005
# Imports that are made ahead, beside training, are done after this many seconds. The first kill comes then, as it may on any machine.
TRAIN = 5
DEVICE = "/dev/nvidia"
# A driver keeps this much of an idle GPU for itself.
IDLE_MIB = 64


class Wrong(Exception):
    """The bench could not be completed."""


class Lane(stacks.Muster):
    """Muster, in one lane, with one of the node's GPUs."""

    gpus = 1

    def __init__(self, setting, folder, program, lane, standbys="off"):
        super().__init__(setting, folder)
        self.program, self.lane, self.standbys = program, lane, standbys

    def script(self):
        return script(self.program, self.steps)

    def ready(self):
        """Whether the next start has all it will have: a standby, where one is wanted."""
        return self.standbys == "off" or stands_by(self.muster("describe", "job", stacks.JOB), self.standbys)

    def prepares(self):
        """Whether a standby is being prepared, or is ready already."""
        return "standbys: 0 of 1" in self.muster("describe", "job", stacks.JOB) or self.ready()

    def steps_in(self, began, ended):
        """Steps that were printed between two moments, in seconds of the clock."""
        texts = (log.read_text(errors="replace") for log in self.cluster.glob("nodes/*/state/runs/*-g*/logs/rank-0.log"))
        times = (datetime.datetime.fromisoformat(line[:26] + "+00:00").timestamp() for text in texts for line in text.splitlines() if " F step=" in line)
        return sum(began <= at < ended for at in times)

    def lost_by_preparing(self):
        """The share of the steps that the preparation of a standby costs while it goes on, in percent."""
        until("preparing a standby", self, self.prepares, pause=0.2)
        began = time.time()
        until("ready for the next kill", self, self.ready, pause=0.2)
        ready = time.time()
        time.sleep(ready - began)
        return 100 * (1 - self.steps_in(began, ready) / max(1, self.steps_in(ready, 2 * ready - began)))


class Tuned(stacks.Torchrun):
    """One torchrun on one node. Its only tuning is that it looks at its workers often."""

    def __init__(self, setting, folder, program):
        super().__init__(setting, folder)
        self.program = program

    def script(self):
        return script(self.program, self.steps)

    def ready(self):
        return True

    def start(self, nodes):
        began = time.monotonic_ns()
        self.launch("--standalone", "--max-restarts=1000", "--monitor-interval=0.1")
        return began


def script(program, folder):
    name, *further = PROGRAMS[program]
    return [str(stacks.HERE / name), str(folder), *further]


def stands_by(described, standbys):
    """Whether `muster describe job` says that a standby waits. Raises if it says that there is none, and why."""
    none = re.search(r"no standbys: (.*)", described)
    if none:
        raise Wrong(f"no standby: {none[1]}")
    return any(f"standbys: 1 of 1 {mode}" in described for mode in (["parked", "open"] if standbys == "auto" else [standbys]))


def cells(programs, lanes, standbys):
    """What is measured: each program in each lane, beside torchrun. Only ranks of lane fork have standbys."""
    of = {"fork": standbys, "auto": ["auto"]}
    for program in programs:
        for lane in lanes:
            for mode in of.get(lane, ["off"]):
                yield program, lane, mode
        yield program, TORCHRUN, "off"


def title(program, lane, standbys):
    words = {TORCHRUN: lane, "auto": "Muster, as a job that says nothing"}.get(lane, f"Muster, {lane}")
    return f"{program}: {words}" + (f", standbys {standbys}" if standbys not in ("off", "auto") else "")


def until(what, stack, look, pause=LOOK):
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        if time.monotonic() > deadline or stack.gave_up():
            raise Wrong(f"not {what}\n{stack.evidence()}")
        time.sleep(pause)
    return found


def read(path):
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


def nvidia_smi(query):
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def used():
    """MiB of the first GPU's memory that are in use."""
    return int(nvidia_smi("memory.used").splitlines()[0])


def with_gpu_open(folder, rank):
    """Processes of this folder, other than the rank, that have a GPU's device file open or mapped."""
    return {pid for pid in processes.naming(folder) - {rank} if has_gpu_open(pathlib.Path(f"/proc/{pid}"))}


def has_gpu_open(process):
    # The agent reads NVML, which keeps the device files open.
    if processes.program(int(process.name)) == "muster-agent":
        return False
    try:
        files = [os.readlink(file) for file in (process / "fd").iterdir()]
        return any(DEVICE in text for text in [*files, (process / "maps").read_text()])
    except OSError:  # the process has ended
        return False


class Agent:
    """What an idle agent costs on this machine, its driver included."""

    def __init__(self, folder):
        self.pid = next(pid for pid in processes.naming(folder) if processes.program(pid) == "muster-agent")

    def used(self):
        """Nanoseconds of processor time so far: in total, and of the threads that ask the driver."""
        threads = list(pathlib.Path(f"/proc/{self.pid}/task").iterdir())
        taken = [((thread / "comm").read_text(), int((thread / "schedstat").read_text().split()[0])) for thread in threads]
        return sum(time for _, time in taken), sum(time for name, time in taken if name.startswith("nvml"))

    def cost(self, seconds):
        """Processor time in % of one core, in total and for the driver, and resident MiB."""
        before = self.used()
        time.sleep(seconds)
        shares = [(after - earlier) / seconds / 1e7 for after, earlier in zip(self.used(), before)]
        return *shares, processes.resident(self.pid)[0] / 1024


def measure(stack, kills):
    """Seconds after each kill, what preparing a standby has cost (in percent of the steps meanwhile), and everything that was wrong."""
    wrong, opened, lost = [], [], None
    stack.start(1)
    until("a first step", stack, lambda: read(stack.steps / "step.0.json"))
    again = []
    time.sleep(TRAIN)
    if isinstance(stack, Lane) and stack.standbys != "off":
        lost = stack.lost_by_preparing()
    for number in range(1, kills + 1):
        until("ready for the next kill", stack, stack.ready)
        pid = read(stack.steps / f"step.{number - 1}.json")["pid"]
        struck = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        step = until(f"a step after kill {number}", stack, lambda: read(stack.steps / f"step.{number}.json"))
        again.append(step["at"] - struck)
        time.sleep(1)
        if isinstance(stack, Lane):
            opened.append(with_gpu_open(stack.cluster, step["pid"]))
    if isinstance(stack, Lane):
        # torchrun itself opens the GPU, and ends with its generation. A process that outlives a kill is a launcher.
        outlived = functools.reduce(set.intersection, opened) if len(opened) > 1 else set()
        wrong += [f"process {pid} outlives the ranks and has a GPU open" for pid in outlived]
        stack.muster("cancel", stacks.JOB, "--wait")
        if used() > IDLE_MIB:
            wrong.append(f"{used()} MiB of the GPU are in use after the end")
        stack.muster("local", "down")
    return again, lost, wrong


def main():
    options = arguments()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-gpu-"))
    programs = pathlib.Path(options.programs)
    setting = race.Setting(sys.executable, programs, 1, 1, 0, None)
    version = subprocess.run([programs / "muster", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    rows, wrong, idle = [], [], None
    try:
        for number, cell in enumerate(cells(options.scripts, options.lanes, options.standbys)):
            program, key, standbys = cell
            home = folder / f"{number}-{key.split(',')[0]}"
            stack = Tuned(setting, home, program) if key == TORCHRUN else Lane(setting, home, program, key, standbys)
            try:
                stack.prepare(1)
                if idle is None and key != TORCHRUN:
                    idle = Agent(home).cost(options.idle)
                again, lost, found = measure(stack, options.kills)
            except (Wrong, RuntimeError, subprocess.TimeoutExpired) as error:  # time on a GPU is dear: the others are measured
                wrong.append(f"{title(*cell)}: {error}")
                print(wrong[-1], flush=True)
                continue
            finally:
                stack.stop()
            rows.append((title(*cell), again, lost))
            wrong += [f"{title(*cell)}: {what}" for what in found]
            cost = "" if lost is None else f"; preparing the first standby cost {lost:.1f} % of the steps meanwhile"
            print(f"{title(*cell)}: after a kill {' '.join(f'{seconds:.2f}' for seconds in again)} s{cost}", flush=True)
    finally:
        processes.sweep(folder)
    text = block(rows, idle, version)
    print(f"\n{text}")
    if wrong:
        raise SystemExit("\n".join(wrong))
    print("No launcher had a GPU open, and after each end the GPU was free.")
    if options.write:
        report.rewrite_block(BEGIN, END, text)


def block(rows, idle, version):
    lines = ["| one rank on one GPU, NCCL | a killed worker: until the next step |", "|---|---|"]
    for name, again, _ in rows:
        spread = f"({min(again):.2f} to {max(again):.2f}, {len(again)} kills)"
        lines.append(f"| {name} | **{statistics.median(again):.2f} s** {spread} |")
    costs = [f"{lost:.1f} % ({name})" for name, _, lost in rows if lost is not None]
    if costs:
        lines += ["", f"While the first standby was prepared, training made fewer steps than after it: {', '.join(costs)}."]
    if idle:
        lines += ["", f"An idle agent on this machine takes {idle[0]:.2f} % of one core, {idle[1]:.2f} of them to ask the driver, and {idle[2]:.0f} MiB."]
    machine = race.describe_machine()
    about = [nvidia_smi("name").splitlines()[0], f"driver {nvidia_smi('driver_version').splitlines()[0]}"]
    about += [f"torch {machine['torch']}", f"Python {machine['python']}", f"{os.cpu_count()} cores"]
    lines += ["", f"Measured by `bench/gpu.py` on {machine['date']}, {version}: {', '.join(about)}.", ""]
    return "\n".join(lines)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=lambda text: text.split(","), default=["auto", "fork", "exec"], help=f"{','.join(LANES)} [auto,fork,exec]")
    parser.add_argument("--scripts", type=lambda text: text.split(","), default=["small"], help=f"{','.join(PROGRAMS)} [small]")
    parser.add_argument("--standbys", type=lambda text: text.split(","), default=["off"], help=f"of lane fork: {','.join(STANDBYS)} [off]")
    parser.add_argument("--kills", type=int, default=5, help="of the worker, one after another [5]")
    parser.add_argument("--idle", type=int, default=30, help="seconds for which an idle agent is watched [30]")
    parser.add_argument("--programs", default=str(stacks.PROGRAMS), help="folder of Muster's programs [target/muster/bin]")
    parser.add_argument("--write", action="store_true", help="write the table into bench/results/README.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
