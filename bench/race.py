"""The re-form race: Muster beside stock torchrun in one run, same script, same machine, interleaved rounds.

    make bench                                  the race and bench/scale.py; writes bench/results/
    python bench/race.py --quick                two events, few rounds, about ten minutes
    python bench/race.py --rounds 1 --events worker,join --competitors fork,tuned
    python bench/race.py --from bench/results/race.json --write       only write tables and plot again

Every measurement is a fresh start of one competitor, one event, and the time from the event until the last member of the new world
has completed its first all-reduce. Noticing the event is part of it. The clock is CLOCK_MONOTONIC everywhere (see step.py). A competitor
that does not re-form while it is watched is reported as "never", with the time for which it was watched. Each start is also a sample of
"first start". The floors have nothing to notice or to stop, so they are timed once a round for each size of world. plan.py says how much
each competitor does.
"""

import argparse
import collections
import contextlib
import datetime
import json
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import containers
import etcd_host
import plan
import processes
import report
import stacks
import watch

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
# A first start with fewer nodes than wanted waits for 30 s of last call with stock defaults, after about 10 s. On a machine of which
# others took 70 %, a cold start was seen to need 36 s.
START_TIMEOUT = 180
# The pause between the world's start and the event, unless --settle says another. Rendezvous states settle (keep-alives of 5 s are not awaited).
SETTLE = 2.0
# A world of four that trains takes 5 to 15 % of two processors. Anything above this is another program's work.
QUIET = 0.3
# A measurement that lost more than this share of the processors to others is repeated, at most --again times. The report uses the least
# disturbed ones of all that were made (report.Cell).
DISTURBED = 0.15

OURS = {key for key, (kind, _) in stacks.COMPETITORS.items() if issubclass(kind, stacks.Muster)}

Setting = collections.namedtuple("Setting", "python programs nodes smallest store_port etcd")


class Event:
    """What happens to a running world of `before` nodes, and how many nodes the next one must have."""

    def __init__(self, key, title, before, after, strike):
        self.key, self.title, self.strike = key, title, strike
        self.before, self.after = before, after


def kill_worker(stack, world):
    victim = world.members[-1].pid
    began = time.monotonic_ns()
    os.kill(victim, signal.SIGKILL)
    return began


def cut_last(stack, world):
    return processes.cut(stack.node_of(world.members[-1].pid))


def cut_first(stack, world):
    return processes.cut(stack.node_of(world.members[0].pid))


def freeze_last(stack, world):
    return processes.freeze(stack.node_of(world.members[-1].pid))[1]


def join(stack, world):
    return stack.add_node()


def resize(stack, world):
    return stack.resize(len(world.members) - 1, world)


# Sizes are relative to --nodes. The victim is the node of the last rank, except where it is rank 0's.
EVENTS = [
    Event("start", "first start", 0, 0, None),
    Event("worker", "one worker killed", 0, 0, kill_worker),
    Event("node", "a node cut (not rank 0)", 0, -1, cut_last),
    Event("rank0", "rank 0's node cut", 0, -1, cut_first),
    Event("frozen", "a node frozen", 0, -1, freeze_last),
    Event("join", "a node joins", -1, 0, join),
    Event("resize", "planned resize", 0, -1, resize),
]


def main():
    options = arguments()
    if options.read:
        race = json.loads(options.read.read_text())
        for entry in race["runs"]:
            report.split_start(entry)
        save(race, options)
    else:
        race = run(options)
    if options.block == report.MAIN:
        (options.out / "race.svg").write_text(report.plot(race))
        page = f"# The phases of the race\n\nWritten by `bench/race.py`; do not edit.\n\n{report.phase_table(race)}"
        (options.out / "race.md").write_text(page)
    print("\n" + report.table(race))
    print(report.phase_table(race))
    print(report.memory_table(race))
    if options.write:
        report.publish(race, options.block)
        print("bench/results/README.md has the new table")


def run(options):
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # on SIGTERM, sweep too
    # Every other event includes a first start.
    chosen = [event for event in EVENTS if event.key in options.events and (event.strike or options.events == ["start"])]
    race = {"meta": describe(options), "runs": [], "memory": []}
    if "pods" in options.competitors:
        try:
            containers.check()
        except containers.Missing as missing:
            leave_out("pods", missing, options, race)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-race-"))
    if OURS & set(options.competitors):
        # The programs are copied, so that all rounds run the same ones even if they are built again meanwhile.
        shutil.copytree(stacks.PROGRAMS, folder / "bin")
        version = subprocess.run([folder / "bin" / "muster-coordinator", "--version"], capture_output=True, text=True, check=True)
        race["meta"]["muster"] = version.stdout.strip()
    store, etcd = stacks.StoreHost(sys.executable), etcd_for(options, folder, race)
    setting = Setting(sys.executable, folder / "bin", options.nodes, max(1, options.nodes // 2), store.port, etcd)
    began = time.monotonic()
    with contextlib.ExitStack() as left:
        left.callback(shutil.rmtree, folder, ignore_errors=True)
        if etcd:
            left.callback(etcd.close)
        left.callback(store.close)
        left.callback(processes.sweep, folder)
        left.enter_context(processes.crowd(options.idle))
        for number in range(options.rounds):
            for event in chosen:
                for key in rotated(options.competitors, number):
                    if plan.takes_part(key, event.key, number, options, race["runs"]):
                        least_disturbed(race, setting, folder, key, event, number, options)
            for size in sorted({options.nodes + event.after for event in chosen}):
                for key in (key for key in stacks.FLOORS if key in options.competitors):
                    floor(race, setting, folder / f"{key}-{size}-{number}", key, number, size, options)
            race["meta"]["rounds"] = number + 1
            race["meta"]["minutes"] = round((time.monotonic() - began) / 60, 1)
            save(race, options)  # however a long race ends, its measurements are kept
    return race


def etcd_for(options, folder, race):
    """An etcd, if a competitor needs one. The table says if none can be had."""
    if "etcd" not in options.competitors:
        return None
    try:
        return etcd_host.Etcd(folder / "etcd-data")
    except etcd_host.Missing as missing:
        leave_out("etcd", missing, options, race)
        return None


def leave_out(key, why, options, race):
    """Goes on without this competitor. The table says why."""
    print(f"!!! {key} does not take part: {why}", file=sys.stderr)
    race["meta"]["absent"][key] = str(why)
    options.competitors.remove(key)
    race["meta"]["competitors"].pop(key)
    if not options.competitors:
        raise SystemExit(f"nobody takes part: {why}")


def least_disturbed(race, setting, folder, key, event, number, options):
    for attempt in range(1 + options.again):
        if measure(race, setting, folder / f"{key}-{event.key}-{number}-{attempt}", key, event, number, options) <= DISTURBED:
            return


def save(race, options):
    """One measurement a line, so that a diff shows figures instead of brackets. Each block of bench/results/README.md has a file of its own."""
    parts = [f'"meta": {json.dumps(race["meta"], indent=1)}']
    for name in ("runs", "memory"):
        parts.append(f'"{name}": [\n' + ",\n".join(json.dumps(entry) for entry in race[name]) + "\n]")
    options.out.mkdir(parents=True, exist_ok=True)
    name = "race" if options.block == report.MAIN else options.block
    (options.out / f"{name}.json").write_text("{" + ",\n".join(parts) + "}\n")


def measure(race, setting, folder, key, event, number, options):
    """One fresh start and one event. Appends what was seen, and returns how much others disturbed it."""
    before, after = setting.nodes + event.before, setting.nodes + event.after
    stack = stacks.COMPETITORS[key][0](setting, folder)
    seen = watch.Watch(stack.steps)
    try:
        stack.prepare(before)
        quiet(options)
        meter = processes.Meter(folder)
        started = stack.start(before)
        world = seen.wait(before, started, time.monotonic() + START_TIMEOUT, stack.gave_up, meter.look)
        others = meter.others()
        if before == setting.nodes:
            record(race, key, "start", number, started, world, seen, before, others)
        if world is None:
            print(f"      {key} did not start\n{stack.evidence()}", file=sys.stderr)
            return others
        if event.strike is None:
            return others
        time.sleep(SETTLE)
        if event.key == "worker" and isinstance(stack, stacks.Muster):
            race["memory"] += memory(stack, key, number)
        quiet(options)
        meter = processes.Meter(folder)
        struck = event.strike(stack, world)
        formed = seen.wait(after, struck, struck / 1e9 + options.watch, stack.gave_up, meter.look)
        entry = record(race, key, event.key, number, struck, formed, seen, after, meter.others())
        if isinstance(stack, stacks.Muster):
            entry["receipts"] = stack.receipts()
            report.split_start(entry)
            if formed is None:
                print(stack.evidence(), file=sys.stderr)
        return entry["others"]
    finally:
        end(stack, options)


def floor(race, setting, folder, key, number, nodes, options):
    """A bare start of this many nodes: the time that is left if there is nothing to notice and nothing to stop."""
    stack = stacks.COMPETITORS[key][0](setting, folder)
    seen = watch.Watch(stack.steps)
    try:
        stack.prepare(nodes)
        quiet(options)
        meter = processes.Meter(folder)
        started = stack.start(nodes)
        world = seen.wait(nodes, started, time.monotonic() + START_TIMEOUT, stack.gave_up, meter.look)
        record(race, key, report.FLOOR, number, started, world, seen, nodes, meter.others())
    finally:
        end(stack, options)


def end(stack, options):
    stack.stop()
    if options.keep:
        sockets = shutil.ignore_patterns("*.sock")
        shutil.copytree(stack.folder, options.keep / stack.folder.name, dirs_exist_ok=True, ignore=sockets)
    shutil.rmtree(stack.folder, ignore_errors=True)


def quiet(options):
    """Waits, for a limited time, until other programs leave the machine mostly alone."""
    until = time.monotonic() + options.quiet
    while processes.busy(0.5) > QUIET and time.monotonic() < until:
        pass


def record(race, key, event, number, since, world, seen, nodes, others):
    watched = (time.monotonic_ns() - since) / 1e9
    entry = {
        "round": number + 1,
        "event": event,
        "competitor": key,
        "nodes": nodes,
        "seconds": world and round((world.first() - since) / 1e9, 3),
        "watched": round(watched, 1),
        "phases": world and {name: round(seconds, 3) for name, seconds in world.phases(since).items()},
        "stood_still": world and seen.stood_still(world),
        # All worlds after the event, including those that fell apart or had another size: (ranks that stepped, size, seconds after it).
        "worlds": [(len(w.members), w.size, round((w.first() - since) / 1e9, 3)) for w in seen.worlds(since)],
        # The share of all processors' time that other programs took meanwhile.
        "others": round(others, 3),
        "load": round(os.getloadavg()[0], 2),
    }
    race["runs"].append(entry)
    said = f"{entry['seconds']:.2f} s" if world else f"never ({watched:.0f} s watched)"
    print(f"round {number + 1}  {event:12} {key:7} {said}   (others took {others:.0%} of the processors)", flush=True)
    return entry


def memory(stack, key, number):
    """The resident memory of Muster's daemons beside a world that trains."""
    time.sleep(3)  # by then the buffers of the start are freed or kept for good
    found = []
    for pid in sorted(processes.naming(stack.cluster)):
        name, size = processes.program(pid), processes.resident(pid)
        if size and name.startswith("muster-"):
            found.append({"round": number + 1, "competitor": key, "program": name, "rss_kib": size[0], "pss_kib": size[1]})
    return found


def rotated(items, by):
    by %= len(items)
    return items[by:] + items[:by]


def describe(options):
    machine = describe_machine()
    return {
        "command": "make bench" if options.as_made else f"bench/race.py {' '.join(sys.argv[1:])}".strip(),
        **{name: machine[name] for name in ("date", "machine", "torch", "python")},
        "nodes": options.nodes,
        "rounds": 0,
        "watch": options.watch,
        "idle": options.idle,
        "events": {event.key: [event.title, options.nodes + event.after] for event in EVENTS if event.key in options.events},
        "competitors": {key: stacks.COMPETITORS[key][1] for key in stacks.COMPETITORS if key in options.competitors},
        # The competitors that should take part and could not, with the reason.
        "absent": {},
    }


def describe_machine():
    versions = "import sys, torch; print(torch.__version__, sys.version.split()[0])"
    torch, python = subprocess.run([sys.executable, "-c", versions], capture_output=True, text=True, check=True).stdout.split()
    try:
        command = ["git", "rev-parse", "--short=12", "HEAD"]
        commit = subprocess.run(command, cwd=stacks.HERE, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # a machine without git has a copy of the tree
        commit = ""
    with open("/proc/meminfo") as file:
        gib = int(file.readline().split()[1]) / 2**20
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} {platform.machine()} cores, {gib:.0f} GiB, Linux {platform.release().split('-')[0]}, no GPU used",
        "commit": commit or "unknown",
        "torch": torch,
        "python": python,
    }


def arguments():
    def some_of(known):
        def read(text):
            chosen = text.split(",")
            unknown = [word for word in chosen if word not in known]
            if unknown:
                raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are: {', '.join(known)}")
            return chosen

        return read

    events, competitors = [event.key for event in EVENTS], list(stacks.COMPETITORS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4, help="nodes of one process each; a job may shrink to half of them [4]")
    parser.add_argument("--rounds", type=int, help="measurements of each event and competitor [as planned in plan.py, 5 at most]")
    parser.add_argument("--quick", action="store_true", help="few rounds of few events: " + ",".join(plan.QUICK_EVENTS))
    parser.add_argument("--events", type=some_of(events), default=events, help=",".join(events) + " [all]")
    parser.add_argument("--competitors", type=some_of(competitors), default=competitors, help=",".join(competitors) + " [all]")
    parser.add_argument("--watch", type=float, default=60, help="seconds until a world that has not re-formed is told as never [60]")
    parser.add_argument("--quiet", type=float, default=15, help="seconds to wait at most for a quiet machine, every time [15]")
    parser.add_argument("--settle", type=float, default=SETTLE, help="seconds that the world trains before the event [2]")
    parser.add_argument("--idle", type=int, default=0, help="processes that do nothing beside the race, as on a large server [0]")
    parser.add_argument("--again", type=int, default=1, help="times to repeat a measurement that others disturbed [1]")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="folder of the results [bench/results]")
    parser.add_argument("--keep", type=pathlib.Path, help="copy the logs of every start into this folder")
    parser.add_argument("--from", dest="read", type=pathlib.Path, help="measure nothing, take the figures of this file")
    parser.add_argument("--write", action="store_true", help="write the table into bench/results/README.md")
    blocks = "the block of bench/results/README.md that --write fills, whose name the results get, too [bench, which is race.json and fills the project's README.md, too]"
    parser.add_argument("--block", default=report.MAIN, help=blocks)
    options = parser.parse_args()
    if options.quick and options.events == events:
        options.events = list(plan.QUICK_EVENTS)
    if options.quick and options.competitors == competitors:
        options.competitors = list(plan.QUICK_COMPETITORS)
    # A number on the command line holds for every competitor. Otherwise each has its own.
    options.planned = options.rounds is None
    options.rounds = options.rounds or (plan.QUICK_ROUNDS if options.quick else plan.ROUNDS)
    if OURS & set(options.competitors) and not options.read and not (stacks.PROGRAMS / "muster").exists():
        parser.error(f"{stacks.PROGRAMS / 'muster'} is not there: run make build first")
    if options.nodes < 3:
        parser.error("--nodes: 3 at least, or no world is left to re-form when one is cut")
    options.as_made = sys.argv[1:] == ["--write"]
    return options


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
