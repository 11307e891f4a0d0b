"""What the coordinator asks of a Kubernetes API server with 10,000 Node objects and 1,000 worker pods, and what that costs it.

    python bench/api_load.py               builds, and needs kube-apiserver and etcd: $KUBEBUILDER_ASSETS, --programs DIR, or PATH
    python bench/api_load.py --quick       1,000 Node objects and 100 pods
    python bench/api_load.py --write       writes the table of bench/results/README.md
    python bench/api_load.py --no-build    takes the coordinator that `make build` has left; then its processor time is not that of a release

A real API server and a real etcd run on this machine, and one coordinator with its records in a file. There is no kubelet and no scheduler: Node
objects are made, pods are bound, and statuses are written by this program. No agent runs, so no job trains.

- *rest*: kubelets renew the status of each node every five minutes, and nothing else happens;
- *pods are made*: ten jobs with a template want them all at once;
- *statuses change*: each pod is bound, gets an address and runs, then becomes ready; as fast as this machine writes them;
- *restart*: the coordinator is killed, and started again.
"""

import argparse
import concurrent.futures
import datetime
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import report
import scale
from api_host import Client, Host, Refused, until

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = pathlib.Path(__file__).resolve().parent / "results"
COORDINATOR = ROOT / "target/muster/bin/muster-coordinator"
SPACE = "team-a"
JOBS = 10
# A kubelet writes the status of a node that does not change this often.
RENEWAL = 300
WRITERS = 8


def main():
    options = arguments()
    if options.build:
        subprocess.run([ROOT / "tools/build", "--release"], check=True)
    began = datetime.datetime.now(datetime.timezone.utc)
    meta = scale.describe(began) | {"command": f"bench/api_load.py{'' if options.build else ' --no-build'}"}
    with tempfile.TemporaryDirectory(prefix="muster-api-load-") as folder, Host(folder, options.programs) as host:
        found = Load(host, options).run()
    page = block(meta, options, found)
    print("\n" + page)
    if options.write:
        (RESULTS / "api-load.json").write_text(json.dumps({"meta": meta, "found": found}, indent=1) + "\n")
        report.rewrite_block("<!-- api-load:begin -->", "<!-- api-load:end -->", page)


class Load:
    def __init__(self, host, options):
        self.host, self.options, self.client = host, options, Client(host.port)
        self.local = threading.local()
        self.phases = []

    def run(self):
        self.fill()
        coordinator = Coordinator(self.host)
        try:
            self.phase("start", coordinator, lambda: coordinator.start(self.options.nodes, 0))
            for _ in range(self.options.rounds):
                self.phase("rest, without pods", coordinator, self.rest)
            self.phase("pods are made", coordinator, self.make_pods)
            for number in range(self.options.rounds):
                self.phase("statuses change", coordinator, lambda number=number: self.change(number))
            for _ in range(self.options.rounds):
                self.phase("rest, with pods", coordinator, self.rest)
            for _ in range(self.options.rounds):
                coordinator.kill()
                self.host.requests()
                self.phase("restart", coordinator, lambda: coordinator.start(self.options.nodes, self.options.pods))
        except SystemExit:
            print("".join(coordinator.log.read_text().splitlines(keepends=True)[-20:]), file=sys.stderr)
            raise
        finally:
            coordinator.kill()
        return self.phases

    def phase(self, name, coordinator, do):
        before, cpu, began = dict(self.host.relay.bytes), coordinator.cpu(), time.monotonic()
        self.host.requests()
        said = do() or {}
        took = time.monotonic() - began
        asked = self.host.requests()
        after = self.host.relay.bytes
        # A coordinator that was started in the phase has used nothing before it.
        used = coordinator.cpu() - (0 if name.endswith("start") else cpu)
        one = {
            "name": name,
            "seconds": round(took, 2),
            "requests": sum(asked.values()),
            "asked": dict(asked.most_common()),
            "down": after["down"] - before["down"],
            "up": after["up"] - before["up"],
            "cpu": round(used, 2),
            "rss": coordinator.rss(),
        } | said
        self.phases.append(one)
        print(f"{name}: {json.dumps({key: value for key, value in one.items() if key != 'name'})}", flush=True)

    # The cluster

    def fill(self):
        """Everything but the coordinator."""
        for document in subprocess.run([COORDINATOR, "crd"], check=True, capture_output=True, text=True).stdout.split("\n---\n"):
            self.client.define(document)
        for name in ("muster-system", SPACE):
            self.client.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        # A controller would make it.
        self.client.ask("POST", f"/api/v1/namespaces/{SPACE}/serviceaccounts", {"metadata": {"name": "default"}})
        self.client.ask("POST", "/apis/apps/v1/namespaces/muster-system/daemonsets", agents())
        began = time.monotonic()
        self.all(self.make_node, range(self.options.nodes))
        print(f"{self.options.nodes} Node objects of {len(json.dumps(node(0))) / 1024:.1f} KiB were made in {time.monotonic() - began:.0f} s", flush=True)

    def all(self, do, things):
        """Does it to all things, with a connection for each of some writers."""
        with concurrent.futures.ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(do, things))

    def own(self):
        if not hasattr(self.local, "client"):
            self.local.client = Client(self.host.port)
        return self.local.client

    def make_node(self, number):
        self.own().ask("POST", "/api/v1/nodes", node(number))

    # What happens

    def rest(self):
        """Renewals at the pace of as many kubelets."""
        period, began = RENEWAL / self.options.nodes, time.monotonic()
        for number in range(int(self.options.rest / period)):
            time.sleep(max(0, began + number * period - time.monotonic()))
            now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            status = {"status": {"conditions": conditions(now)}}
            self.client.ask("PATCH", f"/api/v1/nodes/{node_name(number % self.options.nodes)}/status", status)

    def make_pods(self):
        each = self.options.pods // JOBS
        for number in range(JOBS):
            self.client.ask("POST", f"/apis/muster.dev/v1alpha1/namespaces/{SPACE}/musterjobs", job(number, each))
        until(lambda: len(self.pods()) == each * JOBS, "all pods are made")

    def pods(self):
        return [pod["metadata"]["name"] for pod in self.client.ask("GET", f"/api/v1/namespaces/{SPACE}/pods?resourceVersion=0")["items"]]

    def change(self, round_number):
        """First each pod gets a node and runs; later its readiness goes and comes."""
        pods = self.pods()
        if round_number == 0:
            self.all(self.bind, enumerate(pods))
            flips = (False, True)
        else:
            flips = (False, True, False) if round_number % 2 else (True, False, True)
        for ready in flips:
            self.all(lambda pod, ready=ready: self.set_status(*pod, ready), enumerate(pods))
        return {"changes": 3 * len(pods)}

    def bind(self, pod):
        number, name = pod
        target = {"apiVersion": "v1", "kind": "Node", "name": node_name(number)}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        self.own().ask("POST", f"/api/v1/namespaces/{SPACE}/pods/{name}/binding", body)

    def set_status(self, number, name, ready):
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        state = {"running": {"startedAt": now}}
        container = lambda named: {"name": named, "image": "i", "imageID": "i", "restartCount": 0, "ready": ready, "state": state}  # noqa: E731
        status = {
            "phase": "Running",
            "podIP": f"10.{128 + number // 65536}.{number // 256 % 256}.{number % 256}",
            "startTime": now,
            "conditions": [
                {"type": kind, "status": str(ready or kind in ("PodScheduled", "Initialized")), "lastTransitionTime": now}
                for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
            ],
            "containerStatuses": [container("train")],
            "initContainerStatuses": [container("muster-install"), container("muster-agent")],
        }
        try:
            self.own().ask("PATCH", f"/api/v1/namespaces/{SPACE}/pods/{name}/status", {"status": status})
        except Refused as why:
            raise SystemExit(f"a pod is gone that should stay: {why}") from None


class Coordinator:
    def __init__(self, host):
        self.host, self.process, self.log = host, None, host.folder / "coordinator.log"

    def start(self, nodes, pods):
        """Until it has read everything. Returns when it had what."""
        self.log.write_text("")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
        environment["KUBECONFIG"] = str(self.host.kubeconfig())
        flags = ["--listen=127.0.0.1:0", "--kubernetes-nodes", "--kubernetes-jobs", "--kubernetes-users", "--server-names=localhost"]
        flags += ["--kubernetes-agents=muster-system/muster-agent", "--kubernetes-pods=muster-system/muster-agent"]
        flags += [f"--state-dir={self.host.folder / 'state'}"]
        began = time.time()
        with self.log.open("w") as log:
            self.process = subprocess.Popen([COORDINATOR, *flags], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wanted = {
            "serving": r"serving",
            "nodes": rf"Node objects listed.*count={nodes}\b",
            "pods": rf"worker pods listed.*count={pods}\b",
            "jobs": r"MusterJob objects listed",
        }
        until(lambda: all(re.search(pattern, self.log.read_text()) for pattern in wanted.values()), "the coordinator has read all objects")
        text = re.sub(r"\x1b\[[0-9;]*m", "", self.log.read_text())
        return {"after": {what: round(stamp(re.search(rf"^(\S+) .*{pattern}", text, re.MULTILINE)[1]) - began, 2) for what, pattern in wanted.items()}}

    def kill(self):
        if self.process:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def cpu(self):
        """Seconds of a processor."""
        if not self.process:
            return 0.0
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss(self):
        """MiB now, and at most."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return {name: int(re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)[1]) // 1024 for name, field in (("now", "VmRSS"), ("most", "VmHWM"))}


def stamp(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


# Objects of the size that they have in a cluster of GPU nodes


def node_name(number):
    return f"gpu-node-{number:05}"


def conditions(now):
    kinds = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    return [{"type": kind, "status": str(kind == "Ready"), "reason": f"Kubelet{kind}", "lastHeartbeatTime": now, "lastTransitionTime": now} for kind in kinds]


def node(number):
    name = node_name(number)
    labels = {f"nvidia.com/label-{index}": f"value-{index}" for index in range(40)}
    labels |= {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"zone-{number % 3}", "nvidia.com/gpu.present": "true"}
    images = [{"names": [f"registry.example.org/team/image-{index}@sha256:{index:064x}"], "sizeBytes": index << 20} for index in range(50)]
    capacity = {"cpu": "128", "memory": "2113535Mi", "nvidia.com/gpu": "8", "pods": "110"}
    status = {"capacity": capacity, "allocatable": capacity, "conditions": conditions("2026-01-01T00:00:00Z"), "images": images}
    status["addresses"] = [{"type": "InternalIP", "address": f"10.{number // 65536}.{number // 256 % 256}.{number % 256}"}]
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def agents():
    address = {"name": "MUSTER_COORDINATOR", "value": "https://muster-coordinator.muster-system.svc:7070"}
    container = {"name": "agent", "image": "muster-agent", "env": [address]}
    labels = {"app": "muster-agent"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    return {"metadata": {"name": "muster-agent"}, "spec": {"selector": {"matchLabels": labels}, "template": template}}


def job(number, pods):
    template = {"spec": {"containers": [{"name": "train", "image": "registry.example.org/me/train:1"}]}}
    spec = {"replicas": pods, "gpusPerNode": 8, "command": ["python3"], "args": ["train.py"], "workingDir": "/workspace", "template": template}
    return {"apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": {"name": f"job-{number}"}, "spec": spec}


# The table


HEAD = ("what happens", "takes, s", "requests a second", "received, KB/s", "sent, KB/s", "its processor time, s", "its memory, MiB")


def block(meta, options, phases):
    rows = [HEAD, ("---",) * len(HEAD)] + [row(name, phases) for name in dict.fromkeys(one["name"] for one in phases)]
    of = lambda name: [one for one in phases if one["name"] == name]  # noqa: E731
    last = {what: spread([one["after"][what] for one in of("restart")]) for what in ("serving", "nodes", "pods", "jobs")}
    changed = of("statuses change")[0]
    words = [
        f"\nMeasured by `{meta['command']}` on {meta['date']}, commit {meta['commit']}: {meta['machine']}; load before it {meta['load']}.",
        f"Median, and least to most of {options.rounds}. {options.nodes:,} Node objects, {options.pods:,} worker pods of {JOBS} jobs.",
        "API server, etcd, coordinator and the program that writes the statuses share the processors. Bytes are those on the wire, with TLS.",
        f"After a restart the coordinator serves after {last['serving']} s, has read the jobs after {last['jobs']} s, the pods after {last['pods']} s",
        f"and the nodes after {last['nodes']} s. While pods are made, it asks: {listed(of('pods are made')[0]['asked'])}.",
        f"While statuses change ({changed['changes']:,} changes a round), in the first round: {listed(changed['asked'])}.",
        f"At most it had {max(one['rss']['most'] for one in phases)} MiB.",
    ]
    if not options.build:
        words.append("It was built without optimisation, so its times are upper bounds; requests and bytes do not depend on that.")
    return "\n".join([f"| {' | '.join(cells)} |" for cells in rows] + words) + "\n"


def row(name, phases):
    those = [one for one in phases if one["name"] == name]
    rates = (spread([one[key] / one["seconds"] / unit for one in those]) for key, unit in (("requests", 1), ("down", 1000), ("up", 1000)))
    return (name, spread([one["seconds"] for one in those]), *rates, spread([one["cpu"] for one in those]), spread([one["rss"]["now"] for one in those]))


def listed(asked):
    return ", ".join(f"{count:,} {what}" for what, count in asked.items()) or "nothing"


def spread(values):
    shown = [plain(value) for value in (statistics.median(values), min(values), max(values))]
    return shown[0] if shown[1] == shown[2] else f"{shown[0]} ({shown[1]} to {shown[2]})"


def plain(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=os.environ.get("KUBEBUILDER_ASSETS", "."), help="the folder of etcd and kube-apiserver [$KUBEBUILDER_ASSETS]")
    parser.add_argument("--no-build", dest="build", action="store_false", help="measure the coordinator that is there")
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--pods", type=int, default=1_000)
    parser.add_argument("--rest", type=float, default=20, help="seconds of one rest")
    parser.add_argument("--rounds", type=int, default=3, help="how often what can be repeated is")
    parser.add_argument("--quick", action="store_true", help="1,000 Node objects and 100 pods")
    parser.add_argument("--write", action="store_true", help="write the table of bench/results/README.md")
    options = parser.parse_args()
    if options.quick:
        options.nodes, options.pods = 1_000, 100
    return options


if __name__ == "__main__":
    main()
