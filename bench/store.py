"""What a commit costs with the records in a file (redb) and with the records in a Kubernetes API server, beside each other in one run.

    python bench/store.py               builds, and needs kube-apiserver and etcd: $KUBEBUILDER_ASSETS, --programs DIR, or PATH
    python bench/store.py --write       writes the table of bench/results/README.md
    python bench/store.py --no-build    takes programs that cargo has built without optimisation

For each store one coordinator process gets a fleet of real sessions (bench/fleet) and one job. Its workers die again and again, and each death is
a commit of the job's record before anything is told. Then the coordinator is killed and started again. The rounds of the two stores take turns.
A coordinator with its records in an API server must first see the killed one's Lease end, as the other of two coordinators must.
The API server and its etcd run on this machine, and etcd does not wait for its disk: neither a network nor a slow disk is in these figures.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import report
import scale
from api_host import Client, Host

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
STORES = ("redb", "kubernetes")
# The Lease of `--lease`, as installed.
LEASE = 15


def main():
    options = arguments()
    if options.build:
        scale.build()
    programs = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", scale.ROOT / "target")) / ("release" if options.build else "debug")
    began = datetime.datetime.now(datetime.timezone.utc)
    meta = scale.describe(began) | {"command": f"bench/store.py{'' if options.build else ' --no-build'}"}
    found = {store: [] for store in STORES}
    with tempfile.TemporaryDirectory(prefix="muster-store-") as folder:
        for number in range(options.rounds):
            for store in STORES:
                place = pathlib.Path(folder) / f"{store}-{number}"
                place.mkdir()
                found[store].append(measure(store, place, programs, options))
    page = block(meta, options, found)
    print("\n" + page)
    if options.write:
        (RESULTS / "store.json").write_text(json.dumps({"meta": meta, "found": found}, indent=1) + "\n")
        report.rewrite_block("<!-- store:begin -->", "<!-- store:end -->", page)


def measure(store, folder, programs, options):
    """One fleet. A store in an API server gets an API server of its own, so no round finds the records of another."""
    if store == "redb":
        return fleet(folder, programs, options, [], {})
    with Host(folder, options.programs) as host:
        install(host, programs)
        return fleet(folder, programs, options, ["--flag=--store=kubernetes"], {"KUBECONFIG": str(host.kubeconfig())})


def install(host, programs):
    client = Client(host.port)
    client.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "muster-system"}})
    definitions = subprocess.run([programs / "muster-coordinator", "crd"], check=True, capture_output=True, text=True).stdout
    for document in definitions.split("\n---\n"):
        client.define(document)


def fleet(folder, programs, options, flags, environment):
    command = [programs / "muster-fleetbench", "--coordinator", programs / "muster-coordinator", "--dir", folder / "fleet", *flags]
    command += [f"--agents={options.agents}", f"--members={options.members}", f"--exits={options.exits}"]
    command += ["--rest=1", "--progress=0", "--restarts=1"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")} | environment
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr}")
    told = json.loads(done.stdout)
    exits, restart = told["exit"], told["restarts"][0]
    one = {
        "commit": told["turns"]["deciding turn: commit"],
        "decide": exits["decided, stored and handed to all sessions"],
        "restart_s": restart["all_welcomed_s"],
        "lost": restart["declared_lost"] + restart["generations_broken"],
    }
    print(json.dumps(one), file=sys.stderr, flush=True)
    return one


HEAD = ("records in", "commit of a decision, ms", "99 % of them, ms", "death to all members told, ms", "killed, until it has welcomed all agents, s", "nodes lost")


def block(meta, options, found):
    rows = [HEAD, ("---",) * len(HEAD)]
    for store, rounds in found.items():
        of = lambda *path: spread([pick(one, path) for one in rounds])  # noqa: B023, E731
        name = "a file (redb)" if store == "redb" else "an API server"
        rows.append((name, of("commit", "p50"), of("commit", "p99"), of("decide", "p50"), of("restart_s"), f"{sum(one['lost'] for one in rounds)}"))
    words = [
        f"\nMeasured by `{meta['command']}` on {meta['date']}, commit {meta['commit']}: {meta['machine']}; load before it {meta['load']}.",
        f"{options.agents} agents, one job of {options.members} nodes, {options.exits} deaths a round. Median of {options.rounds} rounds, and least to most.",
        "API server, etcd, coordinator and all agents share the processors, and etcd does not wait for its disk.",
        f"With an API server, the time from the kill to the last welcome has the killed coordinator's Lease of {LEASE} s in it.",
    ]
    if not options.build:
        words.append("The programs were built without optimisation.")
    return "\n".join([f"| {' | '.join(cells)} |" for cells in rows] + words) + "\n"


def pick(one, path):
    for name in path:
        one = one[name]
    return one


def spread(values):
    shown = [f"{value:.1f}" for value in (statistics.median(values), min(values), max(values))]
    return shown[0] if shown[1] == shown[2] else f"{shown[0]} ({shown[1]} to {shown[2]})"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=os.environ.get("KUBEBUILDER_ASSETS", "."), help="the folder of etcd and kube-apiserver [$KUBEBUILDER_ASSETS]")
    parser.add_argument("--no-build", dest="build", action="store_false", help="measure what cargo has built for development")
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--exits", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write the table of bench/results/README.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
