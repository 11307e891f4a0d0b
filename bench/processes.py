"""Process trees of this machine, read from /proc. Whole nodes are cut and frozen at one moment, and nothing is left behind.

The same code breaks every competitor, so that an event is the same for all of them. Linux only.
"""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

TICKS = 100  # looks before a process counts as impossible to freeze or kill; each takes a few milliseconds


def table():
    """pid -> (parent, state) of all processes."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = pathlib.Path("/proc", entry, "stat").read_text(errors="replace")
        except OSError:
            continue
        state, parent = stat[stat.rindex(")") + 2 :].split()[:2]
        found[int(entry)] = (int(parent), state)
    return found


def below(roots, processes=None):
    """The living processes among these and all their descendants."""
    processes = processes or table()
    found, new = set(), set(roots) & processes.keys()
    while new:
        found |= new
        new = {pid for pid, (parent, _) in processes.items() if parent in found and pid not in found}
    return {pid for pid in found if processes[pid][1] not in "ZX"}


def naming(path):
    """Processes whose command line or environment names this path or something in it, except this process."""
    name = naming_pattern(path)
    return {pid for pid in table() if names(pid, name)} - {os.getpid()}


def naming_pattern(path):
    return re.compile(re.escape(os.fsencode(path)) + rb"(?![\w.-])")


def names(pid, name):
    for part in ("cmdline", "environ"):
        try:
            text = pathlib.Path(f"/proc/{pid}/{part}").read_bytes()
        except OSError:
            continue
        if name.search(text):
            return True
    return False


def outside(pid, namespace):
    """The pid here of the process that has this one in the PID namespace with this inode number."""
    if namespace == os.stat("/proc/self/ns/pid").st_ino:
        return pid
    for here in table():
        try:
            if os.stat(f"/proc/{here}/ns/pid").st_ino == namespace and pids(here)[-1] == pid:
                return here
        except OSError:
            continue
    raise LookupError(f"PID namespace {namespace} has no process {pid}")


def pids(pid):
    """What it is called in each PID namespace that it is in, from this one inwards."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    return next([int(word) for word in line.split()[1:]] for line in lines if line.startswith("NSpid:"))


CROWD = """
import os, signal, sys
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        signal.pause()
print(flush=True)
signal.pause()
"""


@contextlib.contextmanager
def crowd(size):
    """So many processes that do nothing, as a large server has them, with the threads of its kernel."""
    if not size:
        yield
        return
    parent = subprocess.Popen([sys.executable, "-c", CROWD, str(size)], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        parent.stdout.readline()
        yield
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
        parent.stdout.close()


def freeze(find):
    """Stops (SIGSTOP) all that `find` finds, until it finds no new process. Returns the processes, and when the first one was hit."""
    frozen, began = set(), 0
    while new := find() - frozen:
        began = began or time.monotonic_ns()
        for pid in new:
            send(pid, signal.SIGSTOP)
        # A fork that is under way completes before the stop takes hold. Only after that does another look help.
        for _ in range(TICKS):
            if not any(state(pid) not in "TtZX" for pid in new):
                break
            time.sleep(0.002)
        frozen |= new
    if not frozen:
        raise LookupError("there is no process to freeze")
    return frozen, began


def cut(find):
    """A power cut. All are frozen first, so that none can report another's death, and then killed together. Returns when it began."""
    frozen, began = freeze(find)
    for pid in frozen:
        send(pid, signal.SIGKILL)
    return began


def sweep(path):
    """Kills every process that names this path, until none is left."""
    for _ in range(TICKS):
        left = {pid for pid in naming(path) if state(pid) not in "ZX"}
        if not left:
            return
        for pid in left:
            send(pid, signal.SIGKILL)
        time.sleep(0.05)
    raise RuntimeError(f"cannot kill {sorted(left)}")


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def state(pid):
    """One letter of proc(5); X if it is gone."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return "X"
    return stat[stat.rindex(")") + 2]


def resident(pid):
    """(Rss, Pss) in KiB from smaps_rollup. None if it is gone. Pss divides shared pages among all that map them."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
    return (sizes["Rss"], sizes["Pss"]) if "Pss" in sizes else None


def program(pid):
    """The file name under which it was started, or empty. One binary may have several names."""
    try:
        return os.path.basename(pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]).decode(errors="replace")
    except OSError:
        return ""


class Meter:
    """How much of the time of all processors other programs took since the meter was made.

    Our processes are those that name the folder, this process, and all descendants. A process that ends leaves no account of what it used
    since it was last looked at. Such time is divided like the time that was seen, because an event ends many of our processes within its
    fraction of a second.
    """

    LOOK = 0.5  # seconds; a look reads some files of every process, a few milliseconds in all
    # A process that was just forked shows its parent's command line. After this many looks it shows its own.
    LOOKS = 3

    def __init__(self, folder):
        self.pattern = naming_pattern(folder)
        # The key is a pid with its start time, because pids are used again. The values: ticks so far, and ticks at the first look.
        self.ticks, self.before = {}, {}
        self.ours, self.strangers = set(), {}
        self.looked = 0.0
        self.times = processor_times()
        self.look(now=True)
        self.before = dict(self.ticks)

    def look(self, now=False):
        if not now and time.monotonic() < self.looked + self.LOOK:
            return
        self.looked = time.monotonic()
        ours = {os.getpid()} | {pid for pid, _ in self.ours}
        for pid in sorted(int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
            try:
                stat = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace")
            except OSError:
                continue
            fields = stat[stat.rindex(")") + 2 :].split()
            parent, process = int(fields[1]), (pid, fields[19])
            if process not in self.ours and self.strangers.get(process, 0) < self.LOOKS:
                if pid in ours or parent in ours or names(pid, self.pattern):
                    ours.add(pid)
                    self.ours.add(process)
                else:
                    self.strangers[process] = self.strangers.get(process, 0) + 1
            self.ticks[process] = int(fields[11]) + int(fields[12])  # utime and stime

    def seen(self):
        """The ticks that our processes were seen to use, and those that others were."""
        used = {process: ticks - self.before.get(process, 0) for process, ticks in self.ticks.items()}
        ours = sum(ticks for process, ticks in used.items() if process in self.ours)
        return ours, sum(used.values()) - ours

    def others(self):
        self.look(now=True)
        total, idle, stolen = (after - before for after, before in zip(processor_times(), self.times))
        ours, theirs = self.seen()
        # Time that another machine on the same processors took was never ours.
        unseen = max(0, total - idle - stolen - ours - theirs)
        theirs += unseen * theirs / (ours + theirs) if ours + theirs else unseen
        return min(1.0, (theirs + stolen) / max(1, total))


def busy(seconds):
    """The share of all processors' time in use during this many seconds, by any process."""
    before = processor_times()
    time.sleep(seconds)
    total, idle, _ = (now - then for now, then in zip(processor_times(), before))
    return 1 - idle / max(1, total)


def processor_times():
    """(all, idle, stolen) time of all processors in clock ticks, from the first line of /proc/stat; stolen is part of all."""
    times = [int(word) for word in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(times), times[3] + times[4], times[7]  # idle includes waiting for a disk
