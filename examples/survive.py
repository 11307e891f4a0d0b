"""Runs the commands of README.md, kills a rank of each after a save, and sees the job resume from that save and end at its last step.

    python examples/survive.py             all of them
    python examples/survive.py titan       or these

Part of the test suite; check.py does the same under plain torchrun. `muster` must be on PATH. Exits non-zero if an example fails.
"""

import contextlib
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

import torch

EXAMPLES = pathlib.Path(__file__).resolve().parent
# Only a failure waits this long. Two ranks were seen to import transformers for 40 s on two busy cores, and each starts twice.
PATIENCE = 600
LOOK = 0.05


class Failure(Exception):
    pass


def whole(folder, pattern, is_whole=lambda _file: True):
    """The newest of the saves whose last file matches the pattern. Its number is in its folder's name. A save gets that name when it is whole."""
    found = [re.search(r"(\d+)$", path.parent.name) for path in folder.glob(pattern) if is_whole(path)]
    return max((int(match[1]) for match in found if match), default=0)


def is_json(file):
    with contextlib.suppress(ValueError, OSError):
        json.loads(file.read_text())
        return True
    return False


def inside(file, field):
    """What the one file says that is always replaced as a whole."""
    return torch.load(file, map_location="cpu", weights_only=False)[field] if file.exists() else 0


# For each example: the step of its newest save, and its last step.
EXAMPLE = {
    "digits": (lambda folder: inside(folder / "digits-checkpoint/checkpoint.pt", "step"), 690),
    "fsdp2": (lambda folder: whole(folder, "bytes-checkpoint/[0-9]*/.metadata"), 200),
    "titan": (lambda folder: whole(folder, "titan-checkpoint/[0-9]*/.metadata"), 200),
    "trainer": (lambda folder: whole(folder, "trainer-checkpoint/*/trainer_state.json", is_json), 200),
    "lightning": (lambda folder: inside(folder / "lightning-checkpoint/last.ckpt", "global_step"), 1000),
}


class Run:
    """The example's command in a folder of its own."""

    def __init__(self, name, folder):
        self.name, self.folder = name, folder
        self.saved, self.last = EXAMPLE[name]
        (folder / "examples").symlink_to(EXAMPLES)
        (folder / "bin").mkdir()
        # As a user types it, with this interpreter as the one of an activated environment.
        (folder / "bin/python3").symlink_to(sys.executable)
        clean = {key: value for key, value in os.environ.items() if not key.startswith("MUSTER_") or key == "MUSTER_BIN_DIR"}
        self.environment = clean | {"TMPDIR": str(folder), "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "MUSTER_CONFIG": str(folder / "config.yaml")}
        self.output = folder / "output"
        with open(self.output, "w") as output:
            self.process = subprocess.Popen(
                self.command(), cwd=folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def command(self):
        typed = re.search(rf"`(muster run [^`]* examples/{self.name}/train\.py[^`]*)`", (EXAMPLES / "README.md").read_text())
        if not typed:
            raise Failure(f"README.md has no command for {self.name}")
        words = shlex.split(typed[1])
        return [*words[:2], "--python", sys.executable, *words[2:]]

    def status(self):
        """The job's status, or None while there is no cluster."""
        for cluster in self.folder.glob("muster-run-*"):
            asked = subprocess.run(
                ["muster", "get", "jobs", "-o", "json"], env=self.environment | {"MUSTER_LOCAL_DIR": str(cluster)}, capture_output=True, check=False
            )
            if asked.returncode == 0 and (jobs := json.loads(asked.stdout)["items"]):
                return jobs[0]["status"]
        return None

    def until(self, what, look):
        deadline = time.monotonic() + PATIENCE
        while not (found := look()):
            over = self.process.poll() is not None
            if over or time.monotonic() > deadline:
                raise Failure(f"not {what}: it {'ended' if over else 'is silent'}\n{self.tail()}")
            time.sleep(LOOK)
        return found

    def tail(self):
        return "\n".join(self.output.read_text(errors="replace").replace("\r", "\n").splitlines()[-20:])

    def trains(self, generation):
        """The status, if this generation has shown a step."""
        status = self.status()
        shown = status and status["generation"] == generation and status["ranks"] and any(rank["lastStep"] for rank in status["ranks"])
        return status if shown and all(rank["pid"] for rank in status["ranks"]) else None

    def survive(self):
        # The rank is known when the save comes, so that no fast example is over before it is killed.
        before = self.until("trained", lambda: self.trains(1))
        saved = self.until("saved", lambda: self.saved(self.folder))
        os.kill(before["ranks"][1]["pid"], signal.SIGKILL)
        after = self.until("trained again", lambda: self.trains(2))
        first = min(rank["firstStep"] for rank in after["ranks"] if rank["firstStep"] is not None)
        if first <= saved:
            raise Failure(f"began again at step {first}, though step {saved} was saved\n{self.tail()}")
        code = self.process.wait(PATIENCE)
        if code != 0:
            raise Failure(f"exit code {code}\n{self.tail()}")
        if (last := self.saved(self.folder)) != self.last:
            raise Failure(f"ended with step {last} saved, not {self.last}\n{self.tail()}")
        return f"a rank killed after step {saved} was saved, went on at step {first}, ended at {last}"

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()


def main():
    names = sys.argv[1:] or list(EXAMPLE)
    if unknown := [name for name in names if name not in EXAMPLE]:
        sys.exit(f"survive: unknown: {', '.join(unknown)}; there are: {', '.join(EXAMPLE)}")
    failed = False
    for name in names:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="muster-example-") as folder:
            run = Run(name, pathlib.Path(folder))
            try:
                said = f"ok: {run.survive()}"
            except (Failure, subprocess.TimeoutExpired) as failure:
                failed = True
                said = f"FAILED: {failure}"
            finally:
                run.stop()
        print(f"{name}: {said}, {time.monotonic() - began:.0f} s", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
