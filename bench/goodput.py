"""How much training is left under a storm of failures: useful steps as a share of an undisturbed run. Part of `make bench`.

    python bench/goodput.py --write                            every failure, period and competitor; about an hour
    python bench/goodput.py --quick                             a worker killed every 10 s, one run each
    python bench/goodput.py --failures worker --periods 10 --competitors fork,tuned --window 30
    python bench/goodput.py --failures worker --periods 10 --competitors trainer,trainer-tuned     with an interpreter that has transformers
    python bench/goodput.py --from bench/results/goodput.json --write       measure nothing, only write the table

A step takes 50 ms and counts once: a step that was not saved is trained again, and does not count again. The window begins when the whole
world trains. Each period ends with a failure of a worker, a node, or rank 0's node, or with a node that is cut some seconds after a notice. A node
that was cut comes back after half a period. A
failure that is due while no rank trains is left out and counted, because a stack that is down cannot be hurt more.
"""

import argparse
import importlib.util
import json
import pathlib
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time

import processes
import race
import report
import stacks
import torchft_host

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
BEGIN, END = "<!-- goodput:begin -->", "<!-- goodput:end -->"
NODES = 3
START_TIMEOUT = 180
# The window for each period. At least two failures fall into it, and a start of half a minute does not fill most of it.
WINDOWS = {10: 60, 30: 90, 60: 150}
UNDISTURBED = 30
FAILURES = {"worker": "a worker killed", "node": "a node cut", "rank0": "rank 0's node cut", "reclaim": "a node reclaimed with notice"}
# Clouds give from 25 seconds to two minutes. A shorter notice leaves more of a period to see.
NOTICE = 3.0
LOOK = 0.05
# A rank trains if it stepped within this many seconds. That is twenty steps, more than a busy machine delays one.
FRESH = 1.0


class Saving:
    """A job that saves every few steps. It replaces the job of the race."""

    save_every = 5

    def script(self):
        return [str(stacks.HERE / "saved_step.py"), str(self.steps), str(self.save_every)]


class Fork(Saving, stacks.MusterFork):
    pass


class Cold(Saving, stacks.Muster):
    pass


class Silent(Fork):
    """The same job, which prints nothing."""

    def submit(self, name, script):
        return super().submit(name, [str(stacks.HERE / "silent.py"), *script])


class Tuned(Saving, stacks.C10dTuned):
    pass


class Trainers(Saving):
    """transformers' Trainer in place of our own loop."""

    def script(self):
        return [str(stacks.HERE / "saved_trainer.py"), str(self.steps), str(self.save_every)]


class Trainer(Trainers, stacks.MusterFork):
    pass


class TrainerTuned(Trainers, stacks.C10dTuned):
    pass


COMPETITORS = {
    "fork": (Fork, "Muster, fork"),
    "silent": (Silent, "Muster, fork, a script that prints nothing"),
    "cold": (Cold, "Muster, cold"),
    "tuned": (Tuned, "torchrun c10d, best tuning"),
    "torchft": (torchft_host.TorchFt, "torchft"),
    "trainer": (Trainer, "Muster, fork, transformers' Trainer"),
    "trainer-tuned": (TrainerTuned, "torchrun c10d, best tuning, transformers' Trainer"),
}


class Steps:
    """Reads what the ranks write after each step: which ranks train now, and how far the job has come."""

    def __init__(self, folder):
        self.folder = folder
        self.read_to = {}
        self.last = {}  # pid -> (nanoseconds, step, world, rank)
        self.furthest = 0

    def look(self):
        for path in self.folder.glob("*.steps"):
            with open(path) as file:
                file.seek(self.read_to.get(path, 0))
                text = file.read()
            whole = text[: text.rfind("\n") + 1]
            self.read_to[path] = self.read_to.get(path, 0) + len(whole)
            for line in whole.splitlines():
                self.last[int(path.stem)] = entry = tuple(map(int, line.split()))
                self.furthest = max(self.furthest, entry[1])

    def training(self):
        """pid by rank, of the ranks that stepped just now."""
        self.look()
        fresh = time.monotonic_ns() - FRESH * 1e9
        return {rank: pid for pid, (at, _, _, rank) in self.last.items() if at > fresh and processes.state(pid) not in "ZX"}

    def world(self):
        """The size of the world that trains. 0 if not all of its ranks train."""
        members = self.training()
        sizes = {self.last[pid][2] for pid in members.values()}
        return len(members) if sizes == {len(members)} else 0


def main():
    options = arguments()
    if options.read:
        found = json.loads(options.read.read_text())
    else:
        found = measure_all(options)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "goodput.json").write_text(written(found))
    print("\n" + block(found))
    if options.write:
        report.rewrite_block(BEGIN, END, block(found))
        print("bench/results/README.md has the new table")


def measure_all(options):
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # on SIGTERM, sweep too
    found = {"meta": race.describe_machine() | {"command": command(options), "nodes": NODES, "save_every": Saving.save_every}, "runs": []}
    found["meta"]["competitors"], found["meta"]["absent"] = {}, {}
    folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-goodput-"))
    shutil.copytree(stacks.PROGRAMS, folder / "bin")
    store = stacks.StoreHost(sys.executable)
    setting = race.Setting(sys.executable, folder / "bin", NODES, 1, store.port, None)
    try:
        for key in options.competitors:
            if key == "torchft":
                try:
                    torchft_host.environment()
                except torchft_host.Missing as missing:
                    found["meta"]["absent"][COMPETITORS[key][1]] = str(missing)
                    continue
            if issubclass(COMPETITORS[key][0], Trainers) and not importlib.util.find_spec("transformers"):
                found["meta"]["absent"][COMPETITORS[key][1]] = "this interpreter has no transformers (tests/strangers/requirements.txt)"
                continue
            found["meta"]["competitors"][key] = COMPETITORS[key][1]
        courses = [(failure, period) for failure in options.failures for period in options.periods]
        for number in range(options.rounds):
            for failure, period in [(None, None), *courses]:
                for key in found["meta"]["competitors"]:
                    # Its groups have nobody whom a notice could tell.
                    if (key, failure) == ("torchft", "reclaim"):
                        continue
                    run = measure(setting, folder / f"{key}-{failure}-{period}-{number}", key, failure, period, options)
                    found["runs"].append(run | {"round": number + 1})
    finally:
        processes.sweep(folder)
        store.close()
        shutil.rmtree(folder, ignore_errors=True)
    return found


def measure(setting, folder, key, failure, period, options):
    """One fresh start and one window. Counts the useful steps in the window."""
    stack = COMPETITORS[key][0](setting, folder)
    steps = Steps(stack.steps)
    try:
        stack.prepare(NODES)
        stack.start(NODES)
        deadline = time.monotonic() + START_TIMEOUT
        while steps.world() < NODES:
            if time.monotonic() > deadline:
                print(stack.evidence(), file=sys.stderr)
                return {"competitor": key, "failure": failure, "period": period, "rate": None, "why": "did not start"}
            time.sleep(LOOK)
        meter = processes.Meter(folder)
        window = options.window or (WINDOWS[period] if period else UNDISTURBED)
        began, first = time.monotonic(), steps.furthest
        struck, missed = storm(stack, steps, failure, period, began + window, meter)
        steps.look()
        made, took = steps.furthest - first, time.monotonic() - began
        run = {"competitor": key, "failure": failure, "period": period, "seconds": round(took, 2), "steps": made, "rate": made / took}
        run |= {"failures": struck, "missed": missed, "others": round(meter.others(), 3)}
        print(f"{key:8} {failure or 'undisturbed':12} {period or '-':>3} s: {made / took:5.2f} steps a second; {struck} failures, {missed} left out", flush=True)
        return run
    finally:
        stack.stop()
        if options.keep:
            shutil.copytree(folder, options.keep / folder.name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
        shutil.rmtree(folder, ignore_errors=True)


def storm(stack, steps, failure, period, until, meter):
    """Breaks something at the end of each period. Returns what was done, and what was left out because no rank trained."""
    began = time.monotonic()
    struck = missed = 0
    due = began + period if failure else until
    later = []  # (moment, what to do then)
    while (now := time.monotonic()) < until:
        meter.look()
        for entry in [entry for entry in later if now >= entry[0]]:
            # Some of these wait until the node is there. Failures go on meanwhile.
            threading.Thread(target=entry[1], daemon=True).start()
            later.remove(entry)
        if now >= due:
            due += period
            members = steps.training()
            if not members:
                missed += 1
            else:
                struck += 1
                pid = members[min(members) if failure == "rank0" else max(members)]
                if failure == "worker":
                    processes.send(pid, signal.SIGKILL)
                elif failure == "reclaim":
                    take, bring = stack.warn(pid)
                    later += [(now + NOTICE, take), (now + period / 2, bring)]
                else:
                    later.append((now + period / 2, stack.cut(pid)))
        time.sleep(LOOK)
    return struck, missed


def shares(found, key, failure, period):
    """For each round: the rate under failures as a share of the same competitor's undisturbed rate."""
    of = lambda *course: [r for r in found["runs"] if (r["competitor"], r["failure"], r["period"]) == (key, *course)]  # noqa: E731
    calm = {run["round"]: run["rate"] for run in of(None, None)}
    return [run["rate"] / calm[run["round"]] for run in of(failure, period) if run["rate"] is not None and calm.get(run["round"])]


def costs(found, key, failure, period):
    """Seconds of training that one failure has cost, for each round: the pause, the steps trained again, and the time with fewer nodes, if slower."""
    of = lambda *course: [r for r in found["runs"] if (r["competitor"], r["failure"], r["period"]) == (key, *course)]  # noqa: E731
    calm = {run["round"]: run["rate"] for run in of(None, None)}
    runs = [run for run in of(failure, period) if run["rate"] is not None and run["failures"] and calm.get(run["round"])]
    return [(run["seconds"] - run["steps"] / calm[run["round"]]) / run["failures"] for run in runs]


def block(found):
    meta = found["meta"]
    head = ["useful steps, share of undisturbed; what one failure costs", *meta["competitors"].values()]
    courses = sorted({(list(FAILURES).index(run["failure"]), run["period"]) for run in found["runs"] if run["failure"]})
    rows = []
    for at, period in courses:
        failure = list(FAILURES)[at]
        cells = []
        for key in meta["competitors"]:
            text = spread(shares(found, key, failure, period))
            if cost := costs(found, key, failure, period):
                text += f", {max(0, statistics.median(cost)):.1f} s each"
            missed = sum(r.get("missed", 0) for r in found["runs"] if (r["competitor"], r["failure"], r["period"]) == (key, failure, period))
            cells.append(text + (f", {missed} failures fell into a pause" if missed else ""))
        rows.append([f"{FAILURES[failure]} every {period} s", *(f"**{text}**" if key in report.OURS else text for key, text in zip(meta["competitors"], cells))])
    table = "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *rows])
    calm = []
    for key, name in meta["competitors"].items():
        rates = [run["rate"] for run in found["runs"] if run["competitor"] == key and run["failure"] is None and run["rate"]]
        if rates:
            calm.append(f"{name} {statistics.median(rates):.1f}")
    others = [run["others"] for run in found["runs"] if "others" in run] or [0.0]
    words = "A node that was cut comes back after half a period.\n" if any(run["failure"] not in ("worker", None) for run in found["runs"]) else ""
    if any(run["failure"] == "reclaim" for run in found["runs"]):
        words += f"A notice comes {NOTICE:.0f} s before the cut. Muster's agent sees it in a file; torchrun gets SIGTERM, as in a pod.\n"
    if "torchft" in meta["competitors"]:
        words += "torchft's replicas heal from a living peer instead, with the settings of its own example and restarts without end.\n"
    absent = "".join(f"{name} did not take part: {why}.\n" for name, why in meta["absent"].items())
    return (
        f"{table}\n\nMeasured by `{meta['command']}` on {meta['date']}, commit {meta['commit']}: {meta['machine']}; torch {meta['torch']}, gloo. "
        f"{meta['nodes']} nodes of one process each.\n"
        f"A step takes 50 ms and counts once; the job saves every {meta['save_every']} steps, and what was not saved is trained again.\n"
        f"{words}Steps a second, undisturbed: {', '.join(calm)}. Other programs took {statistics.median(others):.0%} of the processors\n"
        f"meanwhile (median; {max(others):.0%} at most).\n{absent}"
    )


def spread(values):
    if not values:
        return "-"
    ends = f" ({min(values):.0%}–{max(values):.0%})" if len(values) > 1 else ""
    return f"{statistics.median(values):.0%}{ends}"


def written(found):
    """One run a line, so that a diff shows figures instead of brackets."""
    runs = ",\n".join(json.dumps(run) for run in found["runs"])
    return f'{{"meta": {json.dumps(found["meta"], indent=1)},\n"runs": [\n{runs}\n]}}\n'


def command(options):
    return "make bench" if sys.argv[1:] == ["--write"] else f"bench/goodput.py {' '.join(sys.argv[1:])}".strip()


def arguments():
    def some_of(known, kind=str):
        def read(text):
            chosen = [kind(word) for word in text.split(",")]
            unknown = [str(word) for word in chosen if word not in known]
            if unknown:
                raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are: {', '.join(map(str, known))}")
            return chosen

        return read

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--failures", type=some_of(FAILURES), default=list(FAILURES), help=",".join(FAILURES) + " [all]")
    parser.add_argument("--periods", type=some_of(WINDOWS, int), default=list(WINDOWS), help="seconds between failures [10,30,60]")
    parser.add_argument("--competitors", type=some_of(COMPETITORS), default=list(COMPETITORS), help=",".join(COMPETITORS) + " [all]")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each failure, period and competitor [1]")
    parser.add_argument("--window", type=float, help="seconds of each run [60, 90 and 150 by period, 30 undisturbed]")
    parser.add_argument("--quick", action="store_true", help="only a worker killed every 10 s")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="folder of goodput.json [bench/results]")
    parser.add_argument("--keep", type=pathlib.Path, help="copy the logs of every run into this folder")
    parser.add_argument("--from", dest="read", type=pathlib.Path, help="measure nothing, take the figures of this goodput.json")
    parser.add_argument("--write", action="store_true", help="write the table into bench/results/README.md")
    options = parser.parse_args()
    if options.quick:
        options.failures, options.periods = ["worker"], [10]
    if not options.read and not (stacks.PROGRAMS / "muster").exists():
        parser.error(f"{stacks.PROGRAMS / 'muster'} is not there: run make build first")
    return options


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
