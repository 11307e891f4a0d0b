"""How Muster scales, measured beside its peers in one run, and how much its daemons use.

    make bench                             the race, then this; writes bench/results/scale.json and its table in bench/results/README.md
    python bench/scale.py --only tls       what TLS costs; --only flood: 20,000 connections of strangers; --only scrape: /metrics and the pages of muster web
    python bench/scale.py --quick          fewer repetitions; --from bench/results/scale.json --write   only write the pages again

- the coordinator with 1,000 and 10,000 agents: real sessions over loopback from one process (bench/fleet), one real coordinator;
- one round of torch's c10d rendezvous and one quorum of torchft's lighthouse, which answer the same question (peers.py);
- the TCPStore: 1,024 ranks join as torch does it. The same clients use the store that the shipped runner serves, and the store inside
  torch. The latter is measured twice: once more as its users start it, when it asks the name server for the name of every client.

Everything is built with the release profile. Processor time is the coordinator's own. Wall time is on a machine shared with all agents.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import zlib

import report

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = HERE / "results"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
# The runner as it is shipped, which is static. `make bench` has built it.
RUNNER = ROOT / "target" / "muster" / "bin" / "muster-runner"
JOIN_RANKS = 1_024
STRANGERS = 20_000
READERS = 200
# The limit for the join that waits for the name server. Five seconds for every client would be hours.
JOIN_SECONDS = 300


def main():
    options = arguments()
    name = f"scale-{options.only}" if options.only else "scale"
    if options.read:
        found = json.loads(options.read.read_text())
    else:
        found = measure(options)
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    page = block(found)
    print("\n" + page)
    if options.write:
        report.rewrite_block(f"<!-- {name}:begin -->", f"<!-- {name}:end -->", page)


def measure(options):
    if options.build:
        build()
    began = datetime.datetime.now(datetime.timezone.utc)
    found = {"meta": describe(began), "fleet": [], "peers": [], "store": []}
    exits = 40 if options.quick else 100
    rest = 10 if options.quick else 20
    with tempfile.TemporaryDirectory(prefix="muster-scale-") as folder:
        runs = [(10_000, None, False)] if options.quick else [(1_000, None, False), (10_000, None, False), (10_000, 1, False)]
        if options.only:
            runs = {"tls": [(10_000, None, False), (10_000, None, True)], "flood": [], "scrape": []}[options.only]
        for agents, code, tls in runs:
            found["fleet"].append(fleet(pathlib.Path(folder, f"fleet-{len(found['fleet'])}"), agents, code, tls, exits, rest))
        if options.only == "flood":
            found["flood"] = flood(pathlib.Path(folder, "flood"))
        if options.only == "scrape":
            found["scrape"] = scrape(pathlib.Path(folder, "scrape"), 20 if options.quick else 100)
        if options.only:
            return timed(found, began)
        for kind, members, rounds in [("c10d", 128, 1 if options.quick else 3), ("torchft", 1_000, 3)]:
            found["peers"] += [peer(kind, members) for _ in range(rounds)]
        for number in range(2 if options.quick else 5):
            for whose in ("ours", "torch")[:: 1 if number % 2 else -1]:
                found["store"].append(join(whose))
        found["store"].append(join("torch, names"))
    return timed(found, began)


def timed(found, began):
    found["meta"]["minutes"] = round((datetime.datetime.now(datetime.timezone.utc) - began).total_seconds() / 60, 1)
    return found


def build():
    """Builds the whole workspace at once. For single packages cargo selects other features of their dependencies, and builds those again."""
    subprocess.run(["cargo", "build", "--release", "--locked", "--workspace", "--bins", "--examples"], cwd=ROOT, check=True)


def fleet(folder, agents, code, tls, exits, rest):
    """`code`: the exit code of its dying workers. Without it they are killed. `tls`: each agent has a certificate of its own."""
    say(f"fleet: {agents} agents{f', exit code {code}' if code else ''}{', TLS' if tls else ''}")
    varied = code is not None  # only its decisions are of interest
    command = [TARGET / "muster-fleetbench", "--coordinator", TARGET / "muster-coordinator", "--dir", folder]
    command += [f"--agents={agents}", f"--exits={exits}", f"--rest={1 if varied else rest}", f"--progress={0 if varied else 10}"]
    command += [f"--restarts={0 if varied else 1}", *([f"--exit-code={code}"] if varied else []), *(["--tls"] if tls else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    print(done.stderr, file=sys.stderr)
    if done.returncode:
        # On a machine that other programs load, agents fall silent. The remaining measurements are kept.
        return {"agents": agents, "code": code, "tls": tls, "failed": next((line for line in done.stderr.splitlines() if "Error" in line), "?")}
    return {**json.loads(done.stdout), "code": code, "tls": tls}


def flood(folder):
    """1,000 agents and STRANGERS connections: fewer where not even root may raise the limit of open files."""
    maximum = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    strangers = STRANGERS
    if maximum != resource.RLIM_INFINITY and maximum < STRANGERS + 2_000:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, STRANGERS + 2_000))
        except (ValueError, PermissionError):
            strangers = maximum - 2_000
    say(f"flood: {strangers} connections beside 1,000 agents")
    command = [TARGET / "muster-fleetbench", "--coordinator", TARGET / "muster-coordinator", "--dir", folder, "--tls", "--agents=1000"]
    command += ["--members=100", "--exits=5", "--rest=20", "--progress=0", "--restarts=0", f"--strangers={strangers}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    print(done.stderr, file=sys.stderr)
    if done.returncode:
        return {"failed": next((line for line in done.stderr.splitlines() if "Error" in line), "?")}
    return json.loads(done.stdout)


def scrape(folder, scrapes):
    """10,000 agents, a job of 1,000 nodes and 1,000 of one, all training; so many scrapes of /metrics, as many looks at each page, and READERS at once."""
    say(f"scrape: {scrapes} scrapes and looks at each page of 1,001 jobs on 10,000 agents")
    command = [TARGET / "muster-fleetbench", "--coordinator", TARGET / "muster-coordinator", "--dir", folder, "--agents=10000"]
    command += ["--members=1000", "--jobs=1000", f"--scrapes={scrapes}", "--exits=0", "--rest=5", "--progress=0", "--restarts=0"]
    command += ["--muster", TARGET / "muster", f"--readers={READERS}", f"--reading={10 if scrapes < 100 else 30}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    print(done.stderr, file=sys.stderr)
    if done.returncode:
        return {"failed": next((line for line in done.stderr.splitlines() if "Error" in line), "?")}
    return json.loads(done.stdout)


def peer(kind, members):
    """A peer that cannot be measured here says why. The run goes on."""
    say(f"peer: {kind}, {members} members")
    done = subprocess.run([sys.executable, HERE / "peers.py", kind, str(members)], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode == 0 and lines:
        return json.loads(lines[-1])
    return {"peer": kind, "members": members, "seconds": None, "why": done.stderr.strip().splitlines()[-1:]}


# The store inside torch looks up the name of every client, one at a time, in the one thread that serves all of them. If torch opens the
# socket, it listens for IPv6 and its clients have IPv4-mapped addresses. Those are never in /etc/hosts, so it asks the name server. If it
# gets a socket for IPv4, /etc/hosts answers, and the store itself is measured.
TORCH_STORE = """
import resource, socket, sys
from torch.distributed import TCPStore
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
port, given = 0, {}
if sys.argv[1] == "torch":
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    port = listener.getsockname()[1]
    given = {"master_listen_fd": listener.detach()}
store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, **given)
print(f"127.0.0.1:{store.port}", flush=True)
sys.stdin.read()
"""


def join(whose):
    """One whole join of 1,024 ranks. Returns the milliseconds of each step."""
    say(f"store: {whose}")
    with shipped_store() if whose == "ours" else torch_store(whose) as address:
        client = [TARGET / "examples" / "join_bench", address, str(JOIN_RANKS)]
        try:
            lines = subprocess.run(client, stdout=subprocess.PIPE, text=True, check=True, timeout=JOIN_SECONDS).stdout.splitlines()
        except subprocess.TimeoutExpired:
            return {"store": whose, "over_s": JOIN_SECONDS}
    steps = {line[:34].strip(): float(line[34:].split()[0]) for line in lines}
    return {"store": whose, "ms": steps, "total_ms": steps[f"{JOIN_RANKS} ranks in all"]}


@contextlib.contextmanager
def torch_store(whose):
    """The store inside torch. Yields its address."""
    served = [sys.executable, "-c", TORCH_STORE, whose]
    server = subprocess.Popen(served, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield server.stdout.readline().strip()
    finally:
        server.kill()
        server.wait()


@contextlib.contextmanager
def shipped_store():
    """The store that the shipped runner serves for a worker group. Yields its address. Its soft limit on open files is the usual 1,024."""
    with tempfile.TemporaryDirectory(prefix="muster-store-") as folder:
        hold = {
            "v": 1, "job": "bench", "name": "bench", "namespace": "default", "generation": 1, "node": "bench", "node_rank": 0,
            "nnodes": JOIN_RANKS // 8, "world_size": JOIN_RANKS, "store": {"bind": "127.0.0.1:0", "run_id": "bench"},
        }
        pathlib.Path(folder, "hold.json").write_bytes(sealed(hold))
        limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))  # noqa: E731
        command = [RUNNER, "hold", "--foreground", "--no-cgroup", "--dir", folder]
        runner = subprocess.Popen(command, preexec_fn=limit)
        try:
            record = pathlib.Path(folder, "runner.json")
            while not record.exists():
                if runner.poll() is not None:
                    raise RuntimeError(f"the runner ended with {runner.returncode}")
                time.sleep(0.01)
            yield f"127.0.0.1:{json.loads(record.read_text())['store_port']}"
        finally:
            runner.kill()
            runner.wait()


def sealed(value):
    """As the crate muster-sealed writes it: the last field is the CRC-32 of everything before it."""
    body = json.dumps(value).encode()[:-1]
    return body + b',"sum":"%08x"}\n' % zlib.crc32(body)


def describe(began):
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    with open("/proc/meminfo") as file:
        gib = int(file.readline().split()[1]) / 2**20
    return {
        "command": "make bench" if sys.argv[1:] == ["--write"] else f"bench/scale.py {' '.join(sys.argv[1:])}".strip(),
        "date": began.strftime("%Y-%m-%d"),
        "commit": commit.stdout.strip() or "unknown",
        "machine": f"{os.cpu_count()} {platform.machine()} cores, {gib:.0f} GiB, Linux {platform.release().split('-')[0]}",
        "load": round(os.getloadavg()[0], 1),
    }


def block(found):
    rows = [("what", "measured", "target"), ("---", "---", "---")]
    for one in found["fleet"]:
        rows += fleet_rows(one, plain(found["fleet"], one["agents"]))
    rows += flood_rows(found.get("flood")) + scrape_rows(found.get("scrape")) + peer_rows(found["peers"]) + store_rows(found["store"])
    meta = found["meta"]
    words = (
        f"\nMeasured by `{meta['command']}` on {meta['date']}, commit {meta['commit']}: {meta['machine']}; load before it "
        f"{meta['load']}.\n"
    )
    if found["peers"]:
        words += "The peers answer another question than Muster's whole decision, and a smaller one: who is in the round.\n"
    words += names(found["store"])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n" + words


def plain(fleet, agents):
    """The run of as many agents without TLS, whose figures are the measure of the one with it."""
    return next((one for one in fleet if one["agents"] == agents and one["code"] is None and not one.get("tls") and "failed" not in one), None)


def fleet_rows(one, base):
    tls = one.get("tls", False)
    if "failed" in one:
        return [(f"{one['agents']:,} agents{' with TLS' if tls else ''}", f"failed: {one['failed']}", "")]
    if tls:
        return tls_rows(one, base)
    agents, members = f"{one['agents']:,}", f"{one['members']:,}"
    spread = lambda name: "p50 {p50:.0f}, p99 {p99:.0f} ms ({samples} times)".format(**one["exit"][name])  # noqa: E731
    decided = spread("decided, stored and handed to all sessions")
    if one["code"] is not None:
        return [(f"{agents} agents: a member ends with {one['death']}, decide for {members} nodes", decided, "p99 50 ms")]
    idle, rows = one["idle"], []
    large = one["agents"] >= 10_000
    rows.append((f"{agents} agents at rest: coordinator", f"{idle['rss_mib']:.0f} MiB, {idle['cores']:.2f} cores", "500 MiB, 0.5 cores" if large else ""))
    progress = one["progress"]
    rows.append((
        f"{agents} agents, {members} of them report a step five times a second",
        f"{progress['rss_mib']:.0f} MiB, {progress['cores']:.2f} cores", "",
    ))
    rows.append((f"{agents} agents: a member is killed, decide for {members} nodes", decided, "p99 50 ms" if large else ""))
    for name, what in [
        ("all members have their assignment", f"the same until all {members} have their assignment"),
        ("all members train", f"the same until all {members} were told to train"),
    ]:
        rows.append((f"{agents} agents: {what}", spread(name), ""))
    rows.append((f"{agents} agents: processor time of the coordinator for one such re-form", f"{one['exit_cpu_ms']:.0f} ms", ""))
    for restart in one["restarts"]:
        lost = restart["declared_lost"] + restart["declared_suspect"] + restart["generations_broken"]
        fate = "nobody lost" if not lost else f"{restart['declared_lost']} lost, {restart['declared_suspect']} suspect"
        rows.append((
            f"{agents} agents: coordinator killed and started, until all are welcomed", f"{restart['all_welcomed_s']:.1f} s, {fate}",
            "30 s, nobody lost" if large else "",
        ))
    return rows


def tls_rows(one, base):
    """What TLS adds: every agent shows a certificate of its own."""
    name = f"{one['agents']:,} agents with TLS"
    decided = one["exit"]["decided, stored and handed to all sessions"]
    more = lambda now, before: f" ({now / before:.2f} times as without)" if base else ""  # noqa: E731
    idle, before = one["idle"], base and base["idle"]
    rows = [
        (f"{name}: a certificate for each, for a token, 64 at a time", f"{one['join_s']:.1f} s, {one['join_cpu_s']:.1f} s of processor time", ""),
        (
            f"{name}: all dial at once, until all are welcomed",
            f"{one['first_connect_s']:.1f} s, {one['first_connect_cpu_s']:.1f} s of processor time"
            + (f" (without {base['first_connect_s']:.1f} and {base['first_connect_cpu_s']:.1f})" if base else ""),
            "5 s of processor time more",
        ),
        (
            f"{name} at rest: coordinator",
            f"{idle['rss_mib']:.0f} MiB{more(idle['rss_mib'], before and before['rss_mib'])}, {idle['cores']:.2f} cores", "1.25 times",
        ),
        (f"{name}: a member is killed, decide for {one['members']:,} nodes", "p50 {p50:.0f}, p99 {p99:.0f} ms ({samples} times)".format(**decided), "p99 50 ms"),
    ]
    for restart in one["restarts"]:
        lost = restart["declared_lost"] + restart["declared_suspect"] + restart["generations_broken"]
        fate = "nobody lost" if not lost else f"{restart['declared_lost']} lost, {restart['declared_suspect']} suspect"
        rows.append((f"{name}: coordinator killed and started, until all are welcomed", f"{restart['all_welcomed_s']:.1f} s, {fate}", "30 s, nobody lost"))
    return rows


def flood_rows(one):
    if not one:
        return []
    if "failed" in one:
        return [("a flood of connections", f"failed: {one['failed']}", "")]
    flooded, before = one["flooded"], one["training"]
    what = f"{one['agents']:,} agents with TLS, {flooded['strangers']:,} connections that say nothing"
    lost = flooded["declared_lost"] + flooded["declared_suspect"] + flooded["generations_broken"] + flooded["welcomed_again"]
    fate = "nobody lost, no session ended" if not lost else (
        f"{flooded['declared_lost']} lost, {flooded['declared_suspect']} suspect, {flooded['welcomed_again']} sessions anew"
    )
    held = f"{flooded['rest']['rss_mib']:.0f} MiB (before {before['rss_mib']:.0f}), {flooded['rest']['cores']:.2f} cores (before {before['cores']:.2f})"
    return [
        (what, f"{fate}; {held}", "nobody lost"),
        (f"{what}: a user's call, newly dialled", "p50 {p50:.0f}, max {max:.0f} ms ({samples} times)".format(**flooded["call"]), ""),
    ]


def scrape_rows(one):
    if not one:
        return []
    if "failed" in one:
        return [("a scrape of /metrics", f"failed: {one['failed']}", "")]
    scraped = one["scraped"]
    what = f"{one['agents']:,} agents, {scraped['jobs']:,} jobs that train: a scrape of /metrics"
    size = f"{scraped['series']:,} series, {scraped['bytes'] / 2**20:.1f} MiB"
    spread = "p50 {p50:.0f}, p90 {p90:.0f}, p99 {p99:.0f}, max {max:.0f} ms ({samples} times)".format(**scraped["ms"])
    return [(what, f"{spread}; {size}", "100 ms")] + [page_row(page) for page in one.get("pages", [])] + read_rows(one.get("read"))


def page_row(page):
    spread = "p50 {p50:.0f}, p99 {p99:.0f}, max {max:.0f} ms ({samples} times)".format(**page["ms"])
    return f"the same: `{page['path']}` of `muster web`", f"first {page['first_ms']:.0f}, {spread}; {page['bytes'] / 2**10:.0f} KiB", "200 ms"


def read_rows(read):
    """Readers at once, and what they cost."""
    if not read:
        return []
    readers = f"{read['readers']} readers at once"
    rows = []
    for page in [{"path": None, "ms": read["ms"]}, *read["pages"]]:
        name = f"`{page['path']}`" if page["path"] else "all looks"
        rows.append((f"{readers}: {name}", "p50 {p50:.0f}, p99 {p99:.0f}, max {max:.0f} ms ({samples} times)".format(**page["ms"]), "200 ms"))
    quiet, watched, web = read["quiet"], read["watched"], read["web"]
    used = f"{watched['cores']:.2f} cores, {watched['rss_mib']:.0f} MiB, at most {watched['peak_mib']:.0f}"
    before = f"{quiet['cores']:.2f} cores, {quiet['rss_mib']:.0f} MiB, at most {quiet['peak_mib']:.0f}"
    rows.append((f"{readers}: coordinator", f"{used} (without: {before})", "memory within noise"))
    rows.append((f"{readers}: the one `muster web`", f"{web['cores']:.2f} cores, {web['rss_mib']:.0f} MiB, at most {web['peak_mib']:.0f}", ""))
    return rows


def peer_rows(peers):
    names = {"c10d": "torch c10d dynamic rendezvous, one round of {}", "torchft": "torchft 0.2.0 lighthouse, one quorum of {}"}
    rows = []
    for kind, name in names.items():
        rounds = [one for one in peers if one["peer"] == kind]
        times = sorted(one["seconds"] for one in rounds if one["seconds"] is not None)
        if not rounds:
            continue
        said = f"{statistics.median(times):.1f} s ({times[0]:.1f}–{times[-1]:.1f})" if times else f"not measured: {rounds[0]['why']}"
        rows.append((name.format(f"{rounds[0]['members']:,}"), said, ""))
    return rows


def store_rows(runs):
    total, over = {}, {run["store"]: run["over_s"] for run in runs if "over_s" in run}
    for run in runs:
        if "total_ms" in run:
            total.setdefault(run["store"], []).append(run["total_ms"])
    if not {"ours", "torch"} <= set(total):
        return []
    ours, torch = (statistics.median(total[whose]) for whose in ("ours", "torch"))
    said = lambda whose: f"{statistics.median(total[whose]):,.0f} ms ({min(total[whose]):,.0f}–{max(total[whose]):,.0f})"  # noqa: E731
    what = f"TCPStore, {JOIN_RANKS:,} ranks join as torch does it"
    rows = [(f"{what}: Muster's", f"{said('ours')}, {torch / ours:.2f} times as fast", "faster")]
    rows.append((f"{what}: torch's own, names answered by /etc/hosts", said("torch"), ""))
    slow = "torch, names"
    if slow in total or slow in over:
        took = f"over {over[slow]} s" if slow in over else f"{statistics.median(total[slow]) / 1e3:.1f} s"
        rows.append((f"{what}: torch's own, as it starts", f"{took} with this machine's name server (once)", ""))
    return rows


def names(runs):
    """Why torch's own store is measured twice."""
    if not any(run["store"] == "torch, names" for run in runs):
        return ""
    return (
        "Torch's own store looks up the name of each client that connects, in the thread that serves all; its socket is for IPv6, so that\n"
        "/etc/hosts does not answer for IPv4 clients and the name server does. How long that takes is the name server's affair (one that\n"
        "drops queries costs five seconds each): the ratio is taken beside the same store on an IPv4 socket. Muster's store looks up nothing.\n"
    )


def say(what):
    print(what, file=sys.stderr, flush=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10,000 agents only, and fewer repetitions")
    parser.add_argument("--only", choices=["tls", "flood", "scrape"], help="only what TLS costs with 10,000 agents, a flood of connections, or scrapes of /metrics and looks at the pages; a table of its own for each")
    parser.add_argument("--no-build", dest="build", action="store_false", help="the programs in target/release are built already")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="folder of scale.json [bench/results]")
    parser.add_argument("--from", dest="read", type=pathlib.Path, help="measure nothing, take the figures of this scale.json")
    parser.add_argument("--write", action="store_true", help="write the table into bench/results/README.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
