"""Process trees of this machine, read from /proc: whole nodes are cut and frozen at one moment, and nothing is left behind.

The same code breaks every competitor, so that an event is the same for all of them. Linux only.
"""

import os
import pathlib
import re
import signal
import time

TICKS = 100  # rounds of looking before we say that a process cannot be frozen or killed; each a few milliseconds


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
    """The living ones of these and of all their descendants."""
    processes = processes or table()
    found, new = set(), set(roots) & processes.keys()
    while new:
        found |= new
        new = {pid for pid, (parent, _) in processes.items() if parent in found and pid not in found}
    return {pid for pid in found if processes[pid][1] not in "ZX"}


def naming(path):
    """Processes whose command line or environment names this path or something in it. Not this process."""
    name = re.compile(re.escape(os.fsencode(path)) + rb"(?![\w.-])")
    found = set()
    for pid in table():
        for part in ("cmdline", "environ"):
            try:
                text = pathlib.Path(f"/proc/{pid}/{part}").read_bytes()
            except OSError:
                continue
            if name.search(text):
                found.add(pid)
    return found - {os.getpid()}


def freeze(find):
    """SIGSTOP to all that `find` finds, until it finds nobody new: (who, when the first one was hit)."""
    frozen, began = set(), 0
    while new := find() - frozen:
        began = began or time.monotonic_ns()
        for pid in new:
            send(pid, signal.SIGSTOP)
        # A fork under way completes before the stop takes hold; only then is another look worth something.
        for _ in range(TICKS):
            if not any(state(pid) not in "TtZX" for pid in new):
                break
            time.sleep(0.002)
        frozen |= new
    if not frozen:
        raise LookupError("there is no process to freeze")
    return frozen, began


def cut(find):
    """A power cut: all are frozen first, so that none can tell of another's death, and killed together. When it began."""
    frozen, began = freeze(find)
    for pid in frozen:
        send(pid, signal.SIGKILL)
    return began


def sweep(path):
    """Kills all that names this path, until nobody is left."""
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
    """(Rss, Pss) in KiB from smaps_rollup; None if it is gone. Pss shares pages out among all that map them."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
    return (sizes["Rss"], sizes["Pss"]) if "Pss" in sizes else None


def program(pid):
    """The file name it was started under, or empty: one binary may have several names."""
    try:
        return os.path.basename(pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]).decode(errors="replace")
    except OSError:
        return ""


def busy(seconds):
    """The share of all processors' time in use during that many seconds, by whomever."""

    def read():
        times = [int(word) for word in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(times), times[3] + times[4]  # idle and waiting for a disk

    total, idle = read()
    time.sleep(seconds)
    total_after, idle_after = read()
    return 1 - (idle_after - idle) / max(1, total_after - total)
