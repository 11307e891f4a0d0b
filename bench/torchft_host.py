"""torchft as a competitor: its released package in an environment of its own, its lighthouse, and one torchrun per replica group.

The environment is in the cache directory and uses torch from the bench's interpreter. Everything starts as in torchft's README.
"""

import pathlib
import subprocess
import sys
import time

import processes
import stacks

PACKAGE = "torchft==0.2.0"
CACHE = pathlib.Path.home() / ".cache" / "muster" / PACKAGE.replace("==", "-")


class Missing(Exception):
    """Why torchft is missing here."""


def environment():
    """The environment's folder. It is made if it does not exist."""
    home = CACHE / f"env-{sys.version_info[0]}.{sys.version_info[1]}"
    if not (home / "ready").exists():
        run([getattr(sys, "_base_executable", sys.executable), "-m", "venv", "--clear", "--without-pip", str(home)])
        site = next(home.glob("lib/python*/site-packages"))
        # pip finds torch there, and leaves it where it is.
        (site / "base.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")) + "\n")
        pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install", "--quiet", "--only-binary=:all:", PACKAGE]
        run(pip)
        run([str(home / "bin" / "python"), "-c", "import torchft"])
        (home / "ready").touch()
    return home


def run(command):
    done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise Missing(f"{PACKAGE} cannot be had: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")


class TorchFt(stacks.Torchrun):
    """Replica groups of one process. Its torchrun restarts a group that dies. If its node was cut, the bench restarts it."""

    def __init__(self, setting, folder):
        super().__init__(setting, folder)
        self.home = environment()
        self.groups, self.lighthouse = [], None

    def script(self):
        return [str(stacks.HERE / "torchft_step.py"), str(self.steps)]

    def prepare(self, nodes):
        self.port = stacks.free_port()
        command = [str(self.home / "bin" / "torchft_lighthouse"), "--min_replicas", "1", "--quorum_tick_ms", "100"]
        command += ["--join_timeout_ms", "10000", "--bind", f"127.0.0.1:{self.port}"]
        with open(self.folder / "lighthouse.log", "w") as log:
            self.lighthouse = subprocess.Popen(command, env=self.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def environment(self):
        return super().environment() | {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{self.port}", "RUST_BACKTRACE": "1"}

    def start(self, nodes):
        began = time.monotonic_ns()
        for group in range(nodes):
            self.start_group(group)
        return began

    def start_group(self, group):
        command = [str(self.home / "bin" / "python"), "-m", "torch.distributed.run", f"--master-port={stacks.free_port()}"]
        # Restarts are unlimited, so that no competitor loses because of a small number.
        command += ["--nnodes=1", "--nproc-per-node=1", "--max-restarts=1000000", *self.script()]
        named = {"REPLICA_GROUP_ID": str(group), "NUM_REPLICA_GROUPS": str(self.setting.nodes)}
        with open(self.folder / f"group-{len(self.launchers)}.log", "w") as log:
            launcher = subprocess.Popen(
                command, env=self.environment() | named, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.launchers.append(launcher)
        self.groups.append(group)

    def cut(self, pid):
        find = self.node_of(pid)
        node = find()
        group = next(group for group, launcher in zip(self.groups, self.launchers) if launcher.pid in node)
        processes.cut(find)
        return lambda: self.start_group(group)

    def stop(self):
        if self.lighthouse:
            self.lighthouse.kill()
            self.lighthouse.wait()
        super().stop()
        for launcher in self.launchers:
            launcher.poll()
