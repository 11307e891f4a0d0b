"""Writes down what a process finds around it, per rank, in the folder that the first argument names. Then it pretends to train until the
file `go` is there.

It repeats what `lanes/start.py` compares with plain torchrun only where a launcher of another origin may change it."""

import atexit
import ctypes
import gc
import json
import multiprocessing.process
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time

import torch
import torch.distributed

FOLDER, RANK = pathlib.Path(sys.argv[1]), os.environ["RANK"]
LIMITS = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))


def opened():
    """What each descriptor is, without the numbers of pipes and sockets, and without the folders of files."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.path.basename(os.readlink(f"/proc/self/fd/{fd}")).partition("[")[0]
        except OSError:
            pass  # the listing's own
    return found


def status(*names):
    lines = dict(line.split(":\t", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    return {name: lines[name] for name in names}


SEEN = {
    "argv": sys.argv[2:],
    "orig_argv": sys.orig_argv[:-1],
    "executable": sys.executable,
    "prefix": [sys.prefix, sys.base_prefix],
    "path": sys.path,
    "flags": str(sys.flags),
    "xoptions": sys._xoptions,
    "warnoptions": sys.warnoptions,
    "pycache_prefix": sys.pycache_prefix,
    "cwd": [os.getcwd(), multiprocessing.process.ORIGINAL_DIR, tempfile.gettempdir()],
    "env": dict(sorted(os.environ.items())),
    "env_in_c": sorted(subprocess.run(["/usr/bin/env"], capture_output=True, text=True, check=True).stdout.splitlines()),
    "nice": os.getpriority(os.PRIO_PROCESS, 0),
    "scheduler": [os.sched_getscheduler(0), sorted(os.sched_getaffinity(0))],
    "umask": os.umask(0o22),
    "limits": {name: resource.getrlimit(getattr(resource, name)) for name in LIMITS},
    "signals": {str(n): str(signal.getsignal(n)).partition(" at ")[0] for n in sorted(signal.valid_signals())},
    "status": status("SigBlk", "SigIgn", "SigCgt", "Uid", "Gid", "Groups", "NoNewPrivs", "CapEff", "Threads"),
    "deathsig": ctypes.CDLL(None).prctl(2, ctypes.byref(signals := ctypes.c_int()), 0, 0, 0) or signals.value,
    "dumpable": ctypes.CDLL(None).prctl(3, 0, 0, 0, 0),
    "oom_score_adj": pathlib.Path("/proc/self/oom_score_adj").read_text(),
    "group": [os.getpid() == os.getpgrp(), os.getpid() == os.getsid(0)],
    "cgroup": pathlib.Path("/proc/self/cgroup").read_text(),
    "fds": opened(),
    "locale": [sys.getfilesystemencoding(), __import__("locale").setlocale(__import__("locale").LC_ALL)],
    "cmdline": pathlib.Path("/proc/self/cmdline").read_text().split("\0")[:-2],
    "comm": pathlib.Path("/proc/self/comm").read_text(),
    "threads": [thread.name for thread in threading.enumerate()],
    "torch": [torch.get_num_threads(), torch.get_num_interop_threads(), torch.cuda.is_initialized(), torch.__config__.parallel_info()],
    "hooks": [atexit._ncallbacks(), len(sys.meta_path), len(sys.path_hooks), sys.getrecursionlimit(), gc.get_threshold()],
    "modules": sorted(sys.modules),
}
(FOLDER / f"{RANK}.part").write_text(json.dumps(SEEN))
(FOLDER / f"{RANK}.part").rename(FOLDER / f"{RANK}.json")
print("step 1", flush=True)
while not (FOLDER / "go").exists():
    time.sleep(0.05)
