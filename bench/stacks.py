"""The competitors: how each starts on a few "nodes" of this machine, which processes are a node, and how a node is added.

A node is a torchrun with its workers, or a Muster agent with its runners and workers. All competitors run the same script with
the same interpreter on loopback. Everything that a competitor starts names its folder in command line or environment, so it can be swept.
"""

import json
import os
import pathlib
import socket
import subprocess
import time

import containers
import processes

HERE = pathlib.Path(__file__).resolve().parent
PROGRAMS = HERE.parent / "target" / "muster" / "bin"
JOB = "race"
# Each node waits for 3 s of calm and imports torch, and all nodes do so at the same time.
POOL_PATIENCE = 120
# A coordinator serves, and agents and workers' containers answer, within two seconds of an idle machine.
PODS_PATIENCE = 60
# These are the same for all competitors. gloo would look up the host's name, which may not be loopback. torchrun sets one thread only if
# it starts several workers.
SETTINGS = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


class Stack:
    """One start of one competitor. `start` and `add_node` return when they began, in nanoseconds of the monotonic clock."""

    def __init__(self, setting, folder):
        self.setting = setting
        self.folder = folder
        self.steps = folder / "steps"
        self.steps.mkdir(parents=True)

    def prepare(self, nodes):
        """Starts what must exist before a job: the daemons of stacks that have them. Not timed."""

    def resize(self, nodes, world):
        """A planned change to fewer nodes, in the way of this stack's users. Returns when it was requested."""
        raise NotImplementedError

    def environment(self):
        """The environment without anything that the user set for torchrun or Muster."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_", "PET_", "TORCH"))}
        return clean | SETTINGS

    def script(self):
        return [str(HERE / "step.py"), str(self.steps)]

    def gave_up(self):
        """True if no process is left that could form another world."""
        return False

    def node_of(self, pid):
        """A function that finds all processes of the node on which this process runs."""
        for node in self.nodes():
            if pid in node():
                return node
        raise LookupError(f"no node has process {pid}")

    def cut(self, pid):
        """Cuts the node of this process. Returns a function that brings it back."""
        processes.cut(self.node_of(pid))
        return self.add_node

    def warn(self, pid):
        """Tells the node of this process that its machine will be taken away. Returns two functions: one takes it away, one brings it back."""
        raise NotImplementedError

    def evidence(self):
        """The ends of the logs, which may show why something did not work."""
        ends = [(log, log.read_text(errors="replace")[-1500:]) for log in sorted(self.folder.glob("**/*log"))]
        return "\n".join(f"--- {log.relative_to(self.folder)}\n{end}" for log, end in ends if end)


class Torchrun(Stack):
    def resize(self, nodes, world):
        """torchrun has no request for it. One torchrun is told to end, which is the closest."""
        last = processes.below(self.node_of(world.members[-1].pid)())
        launcher = next(launcher for launcher in self.launchers if launcher.pid in last)
        began = time.monotonic_ns()
        launcher.terminate()
        return began

    def warn(self, pid):
        """torchrun knows no notice. SIGTERM to its launcher is what a pod gets whose node is reclaimed."""
        node = processes.below(self.node_of(pid)())
        next(launcher for launcher in self.launchers if launcher.pid in node).terminate()
        left = lambda: {pid for pid in node if processes.state(pid) not in "ZX"}  # noqa: E731
        return lambda: processes.cut(left) if left() else None, self.add_node

    def __init__(self, setting, folder):
        super().__init__(setting, folder)
        self.launchers = []

    def launch(self, *flags):
        command = [self.setting.python, "-m", "torch.distributed.run", "--nproc-per-node=1", *flags, *self.script()]
        with open(self.folder / f"launcher-{len(self.launchers)}.log", "w") as log:
            launcher = subprocess.Popen(
                command, env=self.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.launchers.append(launcher)

    def gave_up(self):
        return all(launcher.poll() is not None for launcher in self.launchers)

    def nodes(self):
        return [lambda pid=launcher.pid: processes.below({pid}) for launcher in self.launchers]

    def stop(self):
        processes.sweep(self.steps)
        for launcher in self.launchers:
            launcher.wait()


class Static(Torchrun):
    """The floor for cold launches: one static launch of exactly this world, and nothing else."""

    def start(self, nodes):
        began = time.monotonic_ns()
        port = free_port()
        for rank in range(nodes):
            self.launch(
                *(f"--nnodes={nodes}", f"--node-rank={rank}", "--rdzv-backend=static", "--max-restarts=0"),
                *("--master-addr=127.0.0.1", f"--master-port={port}"),
            )
        return began


class Forks(Torchrun):
    """The lowest floor: an interpreter with torch imported forks the ranks, and there is nothing else."""

    def prepare(self, nodes):
        log = open(self.folder / "forks.log", "w")
        command = [self.setting.python, str(HERE / "forks.py"), *self.script()]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
        launcher = subprocess.Popen(command, env=self.environment(), text=True, start_new_session=True, **streams)
        self.launchers.append(launcher)
        launcher.stdout.readline()

    def start(self, nodes):
        began = time.monotonic_ns()
        self.launchers[0].stdin.write(f"{nodes} {free_port()}\n")
        self.launchers[0].stdin.flush()
        return began


class Elastic(Torchrun):
    """Stock elastic training, with any rendezvous back-end."""

    def start(self, nodes):
        began = time.monotonic_ns()
        for _ in range(nodes):
            self.add_node()
        return began

    def add_node(self):
        began = time.monotonic_ns()
        self.launch(
            # Restarts are unlimited, so that no competitor loses because of a small number.
            *(f"--nnodes={self.setting.smallest}:{self.setting.nodes}", "--max-restarts=1000000"),
            *(*self.meeting(), f"--rdzv-id={self.folder.name}", "--local-addr=127.0.0.1"),
        )
        return began


class C10d(Elastic):
    """Its rendezvous store is a process of its own that no event touches. That is kinder than a store on a node."""

    rendezvous = ()
    extra = {}

    def environment(self):
        return super().environment() | self.extra

    def meeting(self):
        endpoint = f"--rdzv-endpoint=127.0.0.1:{self.setting.store_port}"
        return "--rdzv-backend=c10d", endpoint, "--rdzv-conf=" + ",".join(["is_host=0", *self.rendezvous])


class C10dTuned(C10d):
    """The best known settings: attempts share nothing, and no member is awaited for long."""

    rendezvous = ("last_call_timeout=1", "keep_alive_interval=1", "keep_alive_max_attempt=3")
    extra = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class EtcdV2(Elastic):
    """The other stock back-end, with the best known setting. The whole race has one etcd, which no event touches."""

    def environment(self):
        return super().environment() | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PYTHONPATH": str(self.setting.etcd.client)}

    def meeting(self):
        return "--rdzv-backend=etcd-v2", f"--rdzv-endpoint=127.0.0.1:{self.setting.etcd.port}"


class Muster(Stack):
    """Muster, through the real command line. Its daemons have their defaults."""

    lane = "cold"
    gpus = 0

    def __init__(self, setting, folder):
        super().__init__(setting, folder)
        self.cluster = folder / "cluster"
        self.names = []

    def muster(self, *arguments, timeout=90):
        command = [str(self.setting.programs / "muster"), *arguments]
        environment = self.environment() | self.where() | {"NO_COLOR": "1"}
        result = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False
        )
        if result.returncode:
            raise RuntimeError(f"muster {' '.join(arguments)}: exit code {result.returncode}\n{result.stderr.strip()}")
        return result.stdout

    def where(self):
        """The variables by which the command line finds the coordinator."""
        return {"MUSTER_LOCAL_DIR": str(self.cluster)}

    def prepare(self, nodes):
        self.muster("local", "up", "--nodes", str(nodes))

    def start(self, nodes):
        return self.submit(JOB, self.script())

    def submit(self, name, script):
        document = {
            "apiVersion": "muster.dev/v1alpha1",
            "kind": "MusterJob",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "replicas": self.setting.nodes,
                "minReplicas": self.setting.smallest,
                "maxReplicas": self.setting.nodes,
                "procPerNode": 1,
                "gpusPerNode": self.gpus,
                "command": [self.setting.python],
                "args": script,
                "env": [{"name": name, "value": value} for name, value in SETTINGS.items()],
                "workingDir": str(HERE),
                # Stock torchrun takes a new node at once. Muster's cool-down, a default against resize storms, is a choice and not a cost.
                "scaleUpCooldown": "0s",
                "launch": self.lane,
                # Like torchrun's, restarts are practically unlimited.
                "restartPolicy": {"maxRestarts": 1000},
            },
        }
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(document, indent=2))
        began = time.monotonic_ns()
        self.muster("submit", "-f", str(path))
        return began

    def add_node(self):
        began = time.monotonic_ns()
        self.muster("local", "add-node")
        return began

    def resize(self, nodes, world):
        began = time.monotonic_ns()
        self.muster("scale", JOB, "--nodes", str(nodes))
        return began

    def nodes(self):
        homes = sorted((self.cluster / "nodes").iterdir())
        return [lambda home=home: processes.below(processes.naming(home)) for home in homes]

    def home_of(self, pid):
        homes = sorted((self.cluster / "nodes").iterdir())
        return next(home for home, node in zip(homes, self.nodes()) if pid in node())

    def cut(self, pid):
        find, name = self.node_of(pid), self.home_of(pid).name
        processes.cut(find)
        return lambda: self.muster("local", "start-node", name)

    def warn(self, pid):
        """A file in the agent's state directory is the notice. A new machine does not have it."""
        find, home = self.node_of(pid), self.home_of(pid)
        notice = home / "state" / "termination-notice"
        notice.write_text("reclaimed\n")

        def back():
            notice.unlink()
            self.muster("local", "start-node", home.name)

        return lambda: processes.cut(find), back

    def receipts(self):
        """Muster's own account of each re-form, phase by phase. Nothing, if it cannot be asked."""
        try:
            return json.loads(self.muster("explain", JOB, "-o", "json", timeout=10)).get("incidents")
        except (RuntimeError, ValueError, subprocess.TimeoutExpired):
            return None

    def evidence(self):
        try:
            said = self.muster("explain", JOB, timeout=10)
        except (RuntimeError, subprocess.TimeoutExpired) as problem:
            said = str(problem)
        return super().evidence() + "\n--- explain\n" + said

    def stop(self):
        # The folder goes with the cluster, so a forced end loses nothing that is still needed.
        processes.sweep(self.folder)


class MusterParked(Muster):
    """On every node a launcher that has imported torch waits for the next generation."""

    lane = "parked"


class MusterFork(MusterParked):
    """The same, and workers are forked from the launcher."""

    lane = "fork"


class MusterPods(MusterFork):
    """Each node is a pod of two containers, the agent in one and the workers in the other, as the DaemonSet makes them.

    All daemons have the flags with which `muster local` starts them, and their containers beside these.
    """

    # A pod that is gone is not started again. Another one takes its place.
    cut, warn = Stack.cut, Stack.warn

    def __init__(self, setting, folder):
        super().__init__(setting, folder)
        self.daemons, self.server, self.pods = [], None, 0

    def where(self):
        return {"MUSTER_SERVER": self.server}

    def prepare(self, nodes):
        home = self.cluster / "coordinator"
        ready = home / "ready.json"
        self.launch(home / "log", "muster-coordinator", "--listen", "127.0.0.1:0", "--state-dir", home / "state", "--ready-file", ready)
        self.until(ready.exists, "the coordinator does not serve")
        self.server = json.loads(ready.read_text())["endpoint"]
        for _ in range(nodes):
            self.add_node()
        self.until(lambda: self.fit() == nodes, "not every pod is ready")

    def add_node(self):
        began = time.monotonic_ns()
        self.pods += 1
        home = self.cluster / "nodes" / f"pod-{self.pods}"
        volume = home / "run"
        volume.mkdir(parents=True)
        self.launch(
            *(home / "agent.log", "muster-agent", "--coordinator", self.server, "--node-name", home.name, "--state-dir", home / "state"),
            *("--address", "127.0.0.1", "--slots", 1, "--gpus", "none", "--allow-root-workers", "--pod", volume),
            inside=containers.COMMAND,
        )
        self.launch(home / "workers.log", "muster-runner", "pod", "--dir", volume, inside=containers.COMMAND)
        return began

    def fit(self):
        """How many pods take work: both containers are up."""
        found = [node["status"] for node in json.loads(self.muster("get", "nodes", "-o", "json"))["items"]]
        return sum(node["state"] == "Ready" and "workers-container" not in json.dumps(node.get("findings")) for node in found)

    def launch(self, log, program, *flags, inside=()):
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [*inside, str(self.setting.programs / program), *map(str, flags)]
        with open(log, "w") as file:
            daemon = subprocess.Popen(
                command, env=self.environment(), stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )
        self.daemons.append(daemon)

    def until(self, done, problem):
        until = time.monotonic() + PODS_PATIENCE
        while not done():
            if time.monotonic() > until:
                raise RuntimeError(f"{problem}\n{Stack.evidence(self)}")
            time.sleep(0.1)

    def stop(self):
        super().stop()
        for daemon in self.daemons:
            daemon.wait()


class MusterTls(MusterFork):
    """Agents and the command line speak TLS with the coordinator, each with a certificate of its own."""

    def prepare(self, nodes):
        self.muster("local", "up", "--nodes", str(nodes), "--tls")


class MusterPool(MusterFork):
    """The second job with this interpreter, on nodes whose operator allows one launcher that belongs to no job."""

    def prepare(self, nodes):
        self.muster("local", "up", "--nodes", str(nodes), "--warm-pool", "1")
        script = self.folder / "first.py"
        script.write_text("import torch\nprint('step 1', flush=True)\n")
        self.submit("first", [str(script)])
        self.muster("wait", "first", timeout=300)
        until = time.monotonic() + POOL_PATIENCE
        while not all(node["status"]["warmPool"]["ready"] for node in json.loads(self.muster("get", "nodes", "-o", "json"))["items"]):
            if time.monotonic() > until:
                raise RuntimeError("not every node has a launcher in its pool\n" + self.evidence())
            time.sleep(0.2)


class MusterDirect(MusterParked):
    """There is no torchrun: ranks are forked with the environment that torchrun would give them."""

    lane = "direct"


class MusterExec(Muster):
    """There is no torchrun and nothing is imported ahead: ranks are executed in every generation."""

    lane = "exec"


class MusterAuto(Muster):
    """What a job gets that does not say it."""

    lane = "auto"


class StoreHost:
    """The rendezvous store of the c10d competitors. The whole race has one, and each start has an id of its own in it."""

    def __init__(self, python):
        code = (
            "import sys, torch.distributed as dist\n"
            "store = dist.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)\n"
            "print(store.port, flush=True)\n"
            "sys.stdin.read()\n"
        )
        self.process = subprocess.Popen([python, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# Key on the command line -> (class, name in the table).
COMPETITORS = {
    "fork": (MusterFork, "Muster, fork"),
    "pods": (MusterPods, "Muster, fork, in pods"),
    "pool": (MusterPool, "Muster, fork from a warm pool"),
    "tls": (MusterTls, "Muster, fork, TLS"),
    "direct": (MusterDirect, "Muster, direct"),
    "exec": (MusterExec, "Muster, exec"),
    "auto": (MusterAuto, "Muster, auto"),
    "parked": (MusterParked, "Muster, parked"),
    "cold": (Muster, "Muster, cold"),
    "tuned": (C10dTuned, "torchrun c10d, best tuning"),
    "stock": (C10d, "torchrun c10d, defaults"),
    "etcd": (EtcdV2, "torchrun etcd-v2"),
    "static": (Static, "floor: bare static launch"),
    "forks": (Forks, "floor: bare fork"),
}
# They have nothing to notice and nothing to stop. Their only event is a start of as many nodes as the event leaves.
FLOORS = ("static", "forks")
