"""How soon a fault on a node is visible to a user who watches the coordinator, and what the probes cost.

    python bench/senses.py                    about ten minutes; writes bench/results/senses.json
    python bench/senses.py --write           and its table in bench/results/README.md; --from bench/results/senses.json --write   only write the pages again
    python bench/senses.py --kinds link,nic -n 5

Each kind of fault has a local cluster of its own whose nodes look like GPU machines (`muster local up --hardware`). `muster local inject`
injects a fault. The fault's time is the modification time of the file that holds it. It is seen when `muster get nodes --watch` prints the
node with the finding. Injections are spread over the second, so that they meet every phase of the looks. senses-cost measures processor
time and memory.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import report
import scale
import stacks

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
BEGIN, END = "<!-- senses:begin -->", "<!-- senses:end -->"
# Longer than a rule that waits, three missed looks, and a machine that is ten times slower.
PATIENCE = 120
# Multiples of it are spread evenly over the second, however many there are.
GOLDEN = 0.618034
SERVER, GPUS, NICS = "8xh100", 8, [f"mlx5_{number}" for number in (0, 3, 4, 5)]
HARDWARE, KMSG = "hardware.json", "sysroot/dev/kmsg"


class Kind:
    """One kind of fault: the part it hits, what injects it and what mends it, what is found, and how soon that should be."""

    def __init__(self, key, title, check, bound, fault, heal=None, parts=GPUS, scenario=SERVER, limit=1.0, count=None):
        self.key, self.title, self.check, self.bound, self.limit = key, title, check, bound, limit
        self.fault, self.heal, self.parts, self.scenario, self.count = fault, heal, parts, scenario, count


def gpu(fault):
    return lambda node, part: node.inject(f"gpu{part}", fault, HARDWARE)


def nic(fault):
    return lambda node, part: node.inject(NICS[part], fault, f"sysroot/sys/class/infiniband/{NICS[part]}/ports/1/state")


def interface(fault):
    return lambda node, part: node.inject("eno3", fault, "sysroot/sys/class/net/eno3/operstate")


def driver(fault):
    return lambda node, part: node.inject("driver", fault, HARDWARE)


def log_line(node, part):
    hardware = json.loads((node.machine / HARDWARE).read_text())
    address = hardware["gpus"][part]["pci"][4:].lower()
    return node.inject("kernel", f"log=NVRM: Xid (PCI:{address}): 62, pid=4242, name=python3", KMSG)


def notice(node, part):
    node.notice.write_text("spot\n")
    return node.notice.stat().st_mtime


def unnotice(node, part):
    node.notice.unlink()


EVENT, GLANCE = "an event", "a glance, every 0.5 s"
KINDS = [
    Kind("xid", "XID", "xid:62", EVENT, gpu("xid=62")),
    Kind("kmsg", "XID, in the kernel log alone", "xid:62", "the log; as a file: read every 0.2 s", log_line),
    Kind("bus", "GPU off the bus, with XID 79", "xid:79", EVENT, gpu("xid=79"), parts=1, scenario="mig"),
    Kind("lost", "GPU off the bus, without a word", "gpu-lost", GLANCE, gpu("lost")),
    Kind("ecc", "uncorrectable memory error", "ecc-uncorrectable", EVENT, gpu("ecc=1")),
    Kind("recovery", "the driver asks for a reset", "recovery-reset", GLANCE, gpu("recovery=1"), gpu("recovery=0")),
    Kind("link", "NVLink down", "nvlink-down", GLANCE, gpu("link=3:down"), gpu("link=3:up")),
    Kind("interface", "awaited interface down", "awaited-interface", GLANCE, interface("down"), interface("up"), parts=1),
    Kind("notice", "word that the machine goes away", "termination-notice", GLANCE, notice, unnotice, parts=1),
    Kind("nic", "RDMA port down", "port-down", "its rule: down for 5 s; then a look a second", nic("down"), nic("up"), len(NICS), limit=7),
    Kind("silent", "memory error that no event tells", "ecc-uncorrectable", "counters, every 15 s", gpu("silent-ecc=1"), limit=16),
    Kind("hung", "driver hangs", "nvml-hung", "its rule: three looks of 5 s missed", driver("hang"), driver("resume"), 1, limit=17, count=6),
]


class Node:
    def __init__(self, cluster, name):
        self.cluster, self.name = cluster, name
        home = cluster.folder / "nodes" / name
        self.machine, self.notice = home / "hardware", home / "state" / "termination-notice"

    def inject(self, target, fault, file):
        """Returns when the file that holds the fault was written."""
        self.cluster.muster("local", "inject", self.name, target, fault)
        return (self.machine / file).stat().st_mtime


class Cluster:
    """A local cluster, and a watch of its nodes."""

    def __init__(self, folder, nodes, scenario):
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
        self.environment |= {"MUSTER_LOCAL_DIR": str(folder), "MUSTER_NO_LAUNCHERS": "true"}
        if scenario == SERVER:
            self.environment["MUSTER_WAIT_INTERFACE"] = "eno3"
        self.muster("local", "up", f"--nodes={nodes}", f"--hardware={scenario}")
        self.nodes = [Node(self, f"node-{number}") for number in range(1, nodes + 1)]
        self.seen, self.news = {}, threading.Condition()
        command = [stacks.PROGRAMS / "muster", "get", "nodes", "--watch", "-o", "json"]
        self.watch = subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE)
        threading.Thread(target=self.read, daemon=True).start()

    def muster(self, *arguments):
        subprocess.run([stacks.PROGRAMS / "muster", *arguments], env=self.environment, stdout=subprocess.DEVNULL, check=True)

    def read(self):
        decoder, text = json.JSONDecoder(), ""
        while chunk := os.read(self.watch.stdout.fileno(), 1 << 20):
            at = time.time()
            text += chunk.decode()
            while text := text.lstrip():
                try:
                    node, end = decoder.raw_decode(text)
                except ValueError:
                    break
                text = text[end:]
                with self.news:
                    self.seen[node["metadata"]["name"]] = (at, node["status"])
                    self.news.notify_all()

    def findings(self, node, check):
        """The number of findings of this check that the watch showed last, and when it showed them."""
        at, status = self.seen.get(node.name, (0, {}))
        return sum(finding["check"] == check for finding in status.get("findings", [])), at

    def until(self, node, check, wanted):
        """When the watch showed this many of them."""
        with self.news:
            if not self.news.wait_for(lambda: wanted(self.findings(node, check)[0]), PATIENCE):
                raise SystemExit(f"{node.name} never showed {check}: {self.seen.get(node.name)}")
            return self.findings(node, check)[1]

    def down(self):
        self.watch.terminate()
        self.watch.wait()
        self.muster("local", "down")


def measure(kind, count):
    """Seconds from each fault to its finding. A fault that is not mended needs a part of its own."""
    count = kind.count or count
    nodes = 2 if kind.heal else -(-count // kind.parts)
    delays = []
    with tempfile.TemporaryDirectory(prefix="muster-senses-") as folder:
        cluster = Cluster(pathlib.Path(folder), nodes, kind.scenario)
        try:
            for node in cluster.nodes:
                cluster.until(node, kind.check, lambda found: found == 0)
            # By then the agents' first looks are done.
            time.sleep(3)
            for number in range(count):
                node, part = cluster.nodes[number % nodes], number // nodes % kind.parts
                time.sleep(number * GOLDEN % 1)
                before = cluster.findings(node, kind.check)[0]
                begun = kind.fault(node, part)
                delays.append(round(cluster.until(node, kind.check, lambda found: found > before) - begun, 3))
                if kind.heal:
                    kind.heal(node, part)
                    cluster.until(node, kind.check, lambda found: found == before)
        finally:
            cluster.down()
    return delays


def cost(seconds, runs):
    """The output of senses-cost, as numbers."""
    done = subprocess.run([scale.TARGET / "senses-cost", str(seconds), SERVER, str(runs)], capture_output=True, text=True, check=True)
    processor = re.search(r"CPU +([\d.]+) % of one core \(([\d.]+) to ([\d.]+)", done.stdout)
    memory = re.search(r"memory +(\d+) kB", done.stdout)
    return {
        "seconds": seconds,
        "runs": runs,
        "percent": [float(processor[group]) for group in (2, 1, 3)],
        "mib": round(int(memory[1]) / 1024, 1),
        "said": done.stdout,
    }


def ninth(values):
    """The value that nine in ten values do not exceed."""
    return sorted(values)[-(-9 * len(values) // 10) - 1]


def table(found):
    rows = [("what happens", "found by", "median", "90 %", "slowest", "n"), ("---",) * 6]
    for kind in (kind for kind in KINDS if kind.key in found["delays"]):
        delays = found["delays"][kind.key]
        numbers = [f"{seconds:.2f} s" for seconds in (statistics.median(delays), ninth(delays), max(delays))]
        rows.append((kind.title, kind.bound, *numbers, str(len(delays))))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def block(found):
    meta = found["meta"]
    words = (
        f"\nMeasured by `bench/senses.py` on {meta['date']}, commit {meta['commit']}: {meta['machine']}; load before it {meta['load']}. From the "
        "fault until `muster get nodes --watch` shows the finding.\nThe hardware is `tests/fake-nvml`: what a real driver takes to notice is not in it. "
        "Some things take longer by their rule, so that a moment is no verdict. Counters that no event announces, remapped rows, heat and inventory are\n"
        "read every 5 to 60 s: a real driver's answers cost processor time, and none of these ends a job by itself.\n"
    )
    if spent := found.get("cost"):
        low, middle, high = spent["percent"]
        words += (
            f"Looking at 8 GPUs and 12 RDMA ports takes {middle:.2f} % of one core ({low:.2f} to {high:.2f}, {spent['runs']} runs of "
            f"{spent['seconds']} s; at most 0.5 is allowed) and {spent['mib']} MiB.\n"
        )
    return table(found) + words


def main():
    options = arguments()
    if options.read:
        found = json.loads(options.read.read_text())
    else:
        found = {"meta": scale.describe(datetime.datetime.now(datetime.timezone.utc)), "delays": {}}
        for kind in (kind for kind in KINDS if kind.key in options.kinds):
            found["delays"][kind.key] = measure(kind, options.count)
            print(f"{kind.title}: {found['delays'][kind.key]}", file=sys.stderr, flush=True)
        if options.cost:
            found["cost"] = cost(options.seconds, 5)
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "senses.json").write_text(json.dumps(found, indent=1) + "\n")
    page = block(found)
    print("\n" + page)
    if options.write:
        report.rewrite_block(BEGIN, END, page)
    late = [kind.title for kind in KINDS if max(found["delays"].get(kind.key, [0])) > kind.limit]
    if late:
        print(f"later than they should be: {', '.join(late)}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [kind.key for kind in KINDS]
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=known, help=f"of {', '.join(known)}")
    parser.add_argument("-n", "--count", type=int, default=20, help="faults of each kind (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=30, help="length of each of the five runs of senses-cost")
    parser.add_argument("--no-cost", dest="cost", action="store_false", help="leave processor time and memory out")
    parser.add_argument("--quick", action="store_true", help="five of each kind")
    parser.add_argument("--from", dest="read", type=pathlib.Path, help="write the pages from these figures")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="folder for senses.json")
    parser.add_argument("--write", action="store_true", help="write the block into bench/results/README.md")
    options = parser.parse_args()
    if unknown := set(options.kinds) - set(known):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    if options.quick:
        options.count, options.seconds = 5, 10
    return options


if __name__ == "__main__":
    main()
