"""Proves that the example scripts run unchanged under plain torchrun, and that they survive a kill and a stop.

    python examples/check.py              those that need what the tests need
    python examples/check.py trainer      or these

Part of the test suite. Exits non-zero if a check fails.
"""

import concurrent.futures
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

import survive

EXAMPLES = pathlib.Path(__file__).resolve().parent
# A start takes 5 to 10 s on two quiet cores, nearly all of it imports. Other tests may run beside this one.
START_TIMEOUT = 600


class Failure(Exception):
    pass


class Torchrun:
    """One torchrun on this host, on a free port that it chooses. Its output is read as it comes."""

    def __init__(self, ranks, script, *arguments, folder=None):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self.name = f"{script} with {ranks} ranks"
        self.lines = []
        self.changed = threading.Condition()
        self.process = subprocess.Popen(
            command + [str(EXAMPLES / script), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            cwd=folder,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.rstrip())
                self.changed.notify_all()

    def wait_for_line(self, pattern):
        """The first match of the pattern in the output so far or to come."""
        deadline = time.monotonic() + START_TIMEOUT
        with self.changed:
            while not (found := self.find(pattern)):
                left = deadline - time.monotonic()
                ended = not self.reader.is_alive()
                if left <= 0 or ended:
                    raise Failure(f"{self.name}: no line '{pattern}', it {'ended' if ended else 'is silent'}\n{self.tail()}")
                # The end of the output wakes no waiter, so look again now and then.
                self.changed.wait(min(left, 0.5))
        return found

    def find(self, pattern):
        return next((match for line in self.lines if (match := re.search(pattern, line))), None)

    def steps(self):
        """(step, world) of each step line, in order."""
        found = (re.match(r"step=(\d+) .*world=(\d+)", line) for line in self.lines)
        return [(int(match[1]), int(match[2])) for match in found if match]

    def wait(self):
        code = self.process.wait(START_TIMEOUT)
        self.reader.join(START_TIMEOUT)
        return code

    def kill(self):
        """A power cut: SIGKILL to torchrun and its workers, which live in sessions of their own."""
        workers = children(self.process.pid)
        self.process.kill()
        for pid in workers:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.wait()

    def tail(self):
        return "\n".join("    " + line for line in self.lines[-20:])


def children(pid):
    try:
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def check(so, what, run):
    if not so:
        raise Failure(f"{run.name}: {what}\n{run.tail()}")


def digits(folder):
    """Killed in the middle of an epoch with two ranks, the job goes on with one. It loses only that epoch, and still learns."""
    arguments = ["digits/train.py", "--checkpoint-dir", folder, "--epochs", 15]
    steps_per_epoch = 23  # 1,437 training images in batches of 64

    first = Torchrun(2, *arguments, "--step-delay-ms", 30)
    try:
        first.wait_for_line(r"^step=\d+ epoch=2 ")
    finally:
        first.kill()
    check(first.steps()[0] == (1, 2), "did not begin at step 1 with a world of 2", first)

    second = Torchrun(1, *arguments)
    try:
        code = second.wait()
    finally:
        second.kill()
    check(code == 0, f"exit code {code}", second)
    resumed = int(second.wait_for_line(r"^resumed at step=(\d+) ")[1])
    check(resumed == 2 * steps_per_epoch, f"resumed at step {resumed}, not after the two whole epochs", second)
    expected = [(step, 1) for step in range(resumed + 1, 15 * steps_per_epoch + 1)]
    check(second.steps() == expected, "steps are missing or doubled", second)
    accuracy = float(second.wait_for_line(r"^test accuracy ([\d.]+) ")[1])
    check(accuracy >= 0.95, f"test accuracy {accuracy}", second)
    return f"killed at step {first.steps()[-1][0]}, resumed at {resumed} with another world size, test accuracy {accuracy}"


def sigterm(folder):
    """Stopped by SIGTERM to torchrun, the job goes on at the very next step."""
    arguments = ["sigterm/train.py", "--checkpoint-dir", folder, "--steps"]

    first = Torchrun(2, *arguments, 100_000, "--step-delay-ms", 20)
    try:
        first.wait_for_line(r"^step=20 ")
        first.process.terminate()
        code = first.wait()
    finally:
        first.kill()
    check(code != 0, "a stopped run must not look like a finished one", first)
    saved = int(first.wait_for_line(r"^stopped, saved at step=(\d+) ")[1])
    check(first.steps()[-1][0] == saved, f"saved step {saved} is not the last one made", first)

    last = saved + 20
    second = Torchrun(1, *arguments, last, "--step-delay-ms", 0)
    try:
        code = second.wait()
    finally:
        second.kill()
    check(code == 0, f"exit code {code}", second)
    check(second.steps() == [(step, 1) for step in range(saved + 1, last + 1)], f"did not go on at step {saved + 1}", second)
    return f"stopped after step {saved}, went on at {second.steps()[0][0]}"


def fsdp2(folder):
    """Killed with two ranks, the sharded job goes on with one from the last whole checkpoint, and its loss goes on falling."""
    arguments = ["fsdp2/train.py", "--checkpoint-dir", folder, "--save-every", 5, "--steps"]

    first = Torchrun(2, *arguments, 100_000, "--step-delay-ms", 20)
    try:
        first.wait_for_line(r"^step=12 ")
    finally:
        first.kill()

    second = Torchrun(1, *arguments, 60)
    try:
        code = second.wait()
    finally:
        second.kill()
    check(code == 0, f"exit code {code}", second)
    resumed = int(second.wait_for_line(r"^resumed at step=(\d+) ")[1])
    last = first.steps()[-1][0]
    check(10 <= resumed <= last and resumed % 5 == 0, f"resumed at step {resumed}, killed at {last}", second)
    check(second.steps() == [(step, 1) for step in range(resumed + 1, 61)], "steps are missing or doubled", second)
    losses = [float(run.wait_for_line(rf"^step={step} loss=([\d.]+)")[1]) for run, step in ((first, 1), (second, resumed + 1), (second, 60))]
    check(losses[0] > losses[1] > losses[2], f"losses at the start, after the resume and at the end: {losses}", second)
    return f"killed at step {last}, resumed at {resumed} with another world size, loss {losses[0]} to {losses[2]}"


def resumes(name, sign):
    """Killed with two ranks after a save, the job goes on from there with one, to its last step. The sign is in the output of a run that goes on; its number, if
    it has one, is the step."""

    def run(folder):
        folder.mkdir()
        saved, last = survive.EXAMPLE[name]
        first = Torchrun(2, f"{name}/train.py", folder=folder)
        try:
            deadline = time.monotonic() + START_TIMEOUT
            while not (step := saved(folder)):
                check(first.process.poll() is None and time.monotonic() < deadline, "nothing was saved", first)
                time.sleep(0.1)
        finally:
            first.kill()
        second = Torchrun(1, f"{name}/train.py", folder=folder)
        try:
            code = second.wait()
        finally:
            second.kill()
        check(code == 0, f"exit code {code}", second)
        at = [int(number) for number in second.wait_for_line(sign).groups()]
        check(all(number > step for number in at), f"went on at step {at}, though step {step} was saved", second)
        check(saved(folder) == last, f"ended with step {saved(folder)} saved, not {last}", second)
        return f"killed after step {step} was saved, went on with another world size, ended at {last}"

    return run


EXAMPLE = {
    "digits": digits,
    "sigterm": sigterm,
    "fsdp2": fsdp2,
    "titan": resumes("titan", r"^step: (\d+) "),
    "trainer": resumes("trainer", r"([1-9]\d*)/200 \["),
    "lightning": resumes("lightning", r"Restored all states from the checkpoint"),
}
# These need packages that the tests' interpreter has not: make examples.
FRAMEWORKS = ("trainer", "lightning")


def main():
    names = sys.argv[1:] or [name for name in EXAMPLE if name not in FRAMEWORKS]
    if unknown := [name for name in names if name not in EXAMPLE]:
        sys.exit(f"check: unknown: {', '.join(unknown)}; there are: {', '.join(EXAMPLE)}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="muster-examples-") as folder, concurrent.futures.ThreadPoolExecutor() as pool:
        # They run side by side, because most of a start is waiting for files and sockets.
        running = {name: pool.submit(EXAMPLE[name], pathlib.Path(folder, name)) for name in names}
        failed = False
        for name, future in running.items():
            try:
                print(f"{name}: ok: {future.result()}")
            except (Failure, subprocess.TimeoutExpired) as failure:
                failed = True
                print(f"{name}: FAILED: {failure}")
    print(f"{time.monotonic() - began:.1f} s")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
