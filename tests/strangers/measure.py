"""How long public packages stand still after a kill, in every lane beside torchrun: `make strangers STRANGERS=--measure`.

Each program of `programs/` runs with two ranks on one node. Its ranks are killed in turn, and the time from each kill to the next completed
step is taken: noticing it, the end of the old world, the start of the new one, its imports, its model and checkpoint, and the step. torchrun
has its best tuning. All competitors take turns within a round, so that other work on the machine meets all of them. Where a rank notes what
it has imported itself (lane `fork`), that is read, too: at the first start and at the later ones.

    tools/strangers --measure --programs tables,titan_fsdp --lanes fork --rounds 1
    tools/strangers --measure --rounds 3 --write       the whole table, with nothing else on the machine
"""

import contextlib
import datetime
import json
import os
import platform
import statistics
import time

import compare
from compare import HERE, Job, Torchrun, Wrong, alive

RESULTS = HERE / "results.json"
TABLE = HERE / "RESULTS.md"
TORCHRUN = "torchrun, best tuning"
# The steps at which the world is held for a kill, and which rank falls. The first kill of a job is the one that its launcher has prepared
# least for; the others are what a long job sees.
KILLS = {3: "kill rank 1", 5: "kill rank 0", 7: "kill rank 1"}
LAST = 9
# Before a kill the world rests until nothing prepares any more, as it would in a job that has trained for a while. A launcher imports ahead at
# a low priority, so on a busy machine this takes a while. Only a lane without launchers never shows that it is ready.
REST = 5
PREPARED_WITHIN = 240
LOOK = 0.002
# The targets: so much faster than torchrun, and so large a part of a first start's imports at a later one.
FASTER, IMPORTS = 5, 0.10


class Timed:
    """Takes the time from each kill to the next step. A part of a `Run`."""

    def measure(self):
        self.times, self.wrong = [], []
        try:
            self.start()
            stops = sorted(self.faults)
            for step, after in zip(stops, [*stops[1:], LAST]):
                ranks = self.until(f"held at step {step}", lambda: self.world(step))
                self.prepared()
                self.times.append(self.time_of(ranks[int(self.faults[step].split()[-1])]["pid"], step, after))
            self.until("over", self.is_over)
        except Wrong as problem:
            self.wrong.append(str(problem))
        finally:
            imports = self.imports()
            self.stop()
        return {"kills": self.times, "imports": imports, "wrong": self.wrong}

    def time_of(self, pid, step, after):
        began = time.monotonic()
        os.kill(pid, compare.signal.SIGKILL)
        while alive(pid):
            time.sleep(LOOK)
        # The old world can make no step without this rank, so only a new one goes on.
        self.hold(after)
        deadline = began + compare.PATIENCE
        while max(self.losses(), default=0) <= step:
            if time.monotonic() > deadline:
                raise Wrong(f"no step within {compare.PATIENCE} s after a kill{self.evidence()}")
            time.sleep(LOOK)
        return time.monotonic() - began

    def command(self):
        return [*super().command()[:-1], str(LAST)]

    def prepared(self):
        time.sleep(REST)

    def imports(self):
        return []


class TimedTorchrun(Timed, Torchrun):
    def start(self):
        super().start("--monitor-interval=0.1")


class TimedJob(Timed, Job):
    nodes, ranks, restarts = 1, 2, len(KILLS)

    def prepared(self):
        """Waits until the launcher has imported what the job has imported, and has forked a chain."""
        if self.lane in ("fork", "direct"):
            deadline = time.monotonic() + PREPARED_WITHIN
            while not list(self.cluster.glob("**/runs/*-launcher-*/preloaded.txt")) and time.monotonic() < deadline:
                time.sleep(LOOK)
        time.sleep(REST)

    def imports(self):
        """Seconds of imports at each start that noted them."""
        seconds = {}
        for path in self.cluster.glob("**/runs/*-g*/phases-0"):
            with contextlib.suppress(OSError, ValueError):
                seconds[int(path.parent.name.rpartition("-g")[2])] = json.loads(path.read_text())["imports_us"] / 1e6
        return [seconds[generation] for generation in sorted(seconds)]


def run(options):
    """Measures, and prints the table. Returns the exit code."""
    found = {program: {name: {"kills": [], "imports": [], "wrong": []} for name in (TORCHRUN, *options.lanes)} for program in options.programs}
    for number in range(options.rounds):
        for program in options.programs:
            for name in (TORCHRUN, *options.lanes):
                with compare.tempfile.TemporaryDirectory(prefix="muster-strangers-") as folder:
                    folder = compare.pathlib.Path(folder) / "run"
                    one = TimedTorchrun(program, folder, KILLS) if name == TORCHRUN else TimedJob(program, folder, KILLS, name)
                    taken = one.measure()
                cell = found[program][name]
                cell["kills"] += taken["kills"]
                cell["imports"].append(taken["imports"])
                cell["wrong"] += taken["wrong"]
                said = " ".join(f"{seconds:.2f}" for seconds in taken["kills"])
                print(f"round {number + 1}  {program:22} {name:22} {said}  {'; '.join(taken['wrong'])}", flush=True)
    lines = table(found, options.lanes)
    print("\n" + "\n".join(lines))
    if options.write:
        write(found, lines, options)
    return 1 if any(cell["wrong"] for row in found.values() for cell in row.values()) else 0


def table(found, lanes):
    head = ["program", TORCHRUN, *lanes, "fork: times as fast", "imports of a first start, of later ones"]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for program, cells in found.items():
        best, forked = median(cells[TORCHRUN]["kills"]), cells.get("fork")
        row = [program, *(seconds(cells[name]["kills"]) for name in (TORCHRUN, *lanes))]
        row.append(f"{best / median(forked['kills']):.1f}" if forked and forked["kills"] and best else "not measured")
        row.append(said_of(forked["imports"]) if forked else "not measured")
        rows.append("| " + " | ".join(row) + " |")
    return rows


def median(values):
    return statistics.median(values) if values else 0


def seconds(values):
    """The median, and the least and the greatest."""
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})" if values else "not measured"


def said_of(runs):
    first = [run[0] for run in runs if run]
    later = [value for run in runs for value in run[1:]]
    if not first or not later:
        return "not seen"
    return f"{median(first):.1f} s, {median(later):.2f} s ({100 * median(later) / median(first):.0f} %)"


def write(found, lines, options):
    when = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    where = f"{os.cpu_count()} processors, {platform.machine()}, Python {platform.python_version()}, gloo, two ranks on one node"
    RESULTS.write_text(json.dumps({"when": when, "where": where, "rounds": options.rounds, "seconds": found}, indent=1) + "\n")
    words = [
        "# Other people's trainers after a kill",
        "",
        f"Written by `tools/strangers --measure --rounds {options.rounds} --write` on {when}: {where}. Seconds from SIGKILL of a rank to the next completed step,",
        f"median (least-greatest) of {options.rounds * len(KILLS)} kills. Targets: `fork` at least {FASTER} times as fast, and imports at later starts at most",
        f"{IMPORTS:.0%} of those at a first one. The programs are in `programs/`, the versions in `requirements.txt`, each figure in `results.json`.",
        "",
        *lines,
    ]
    TABLE.write_text("\n".join(words) + "\n")
    print(f"written: {TABLE.relative_to(compare.ROOT)} and {RESULTS.relative_to(compare.ROOT)}")
