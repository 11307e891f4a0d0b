"""Writes down, per rank in the folder named first, all that a script can see of its start, and every way in which it may end.

`RANK.json`: the start. `RANK.WAY.txt`: the output of a process that ended in one way, with the names of `WAYS`. Each such process is a
fork of this one, so that one start shows all ways. At last, when the file `go` is there, rank 1 fails under `@record`, and rank 0 is told
to stop because of it.
"""

import atexit
import faulthandler
import json
import os
import pathlib
import random
import signal
import sys
import threading
import time
import traceback

FOLDER, RANK = pathlib.Path(sys.argv[1]), os.environ["RANK"]


def signal_name(number):
    """Python before 3.11 has no name for SIGSTKFLT."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


SEEN = {
    "argv": sys.argv[2:],
    "argv0": sys.argv[0],
    "orig_argv": sys.orig_argv[1:-2],
    "executable": sys.executable,
    "path": sys.path,
    "cwd": os.getcwd(),
    "main": {name: repr(value) for name, value in globals().items() if name.startswith("__") and name != "__loader__"},
    "loader": type(__loader__).__name__,
    "main_is_main": sys.modules["__main__"].__dict__ is globals(),
    "also_main": sorted(name for name, module in sys.modules.items() if module is sys.modules["__main__"]),
    "flags": str(sys.flags),
    "warnoptions": sys.warnoptions,
    "xoptions": sys._xoptions,
    "env": dict(sorted(os.environ.items())),
    "signals": {signal_name(n): str(signal.getsignal(n)).partition(" at ")[0] for n in sorted(signal.valid_signals()) if n < 32},
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "wakeup": signal.set_wakeup_fd(-1),
    "stdin": [sys.stdin.read(), sys.stdin.name, os.fstat(0).st_rdev],
    "stdio": [[s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty()] for s in (sys.stdout, sys.stderr)],
    "group_leader": os.getpgrp() == os.getpid() == os.getsid(0),
    "threads": [thread.name for thread in threading.enumerate()],
    "first_file": os.open("/dev/null", os.O_RDONLY),
    "umask": os.umask(0o22),
    "nice": os.getpriority(os.PRIO_PROCESS, 0),
    "limits": __import__("resource").getrlimit(__import__("resource").RLIMIT_NOFILE),
    "dont_write_bytecode": sys.dont_write_bytecode,
    "hooks": [sys.excepthook is sys.__excepthook__, sys.unraisablehook is sys.__unraisablehook__, sys.gettrace(), sys.getprofile()],
    "meta_path": [getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path],
    "recursion": sys.getrecursionlimit(),
    "switch": sys.getswitchinterval(),
    "atexit": atexit._ncallbacks(),
    "stack": len(traceback.extract_stack()),
    "cmdline": pathlib.Path("/proc/self/cmdline").read_text().split("\0")[1:-1][-3:-1],
    "comm": pathlib.Path("/proc/self/comm").read_text(),
    "frozen": __import__("gc").get_freeze_count(),
    "modules": sorted(sys.modules),
}
class Unlucky(Exception):
    pass


class Mourned:
    def __del__(self):
        print("let go of a global", flush=True)


def deep(levels):
    if levels:
        deep(levels - 1)
    try:
        {}["missing"]
    except KeyError as error:
        raise Unlucky("as asked") from error


def hook():
    sys.excepthook = lambda kind, error, trace: print("hook saw", kind.__name__, trace.tb_frame.f_code.co_name, file=sys.stderr)
    raise Unlucky("to the hook")


def thread():
    threading.Thread(target=lambda: (threading.main_thread().join(), print("a thread ends after the script"))).start()


def peer_lost():
    global unflushed
    unflushed = open(FOLDER / f"{RANK}.unflushed.txt", "w")
    unflushed.write("written, and never closed")
    thread()
    raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:35093")


def trace():
    seen = []
    sys.settrace(lambda frame, event, arg: seen.append((frame.f_code.co_name, event)))
    pathlib.Path("x").is_absolute()
    sys.settrace(None)
    print(seen)


def debugger():
    breakpoint()
    print("not reached: standard input has ended")


def whole():
    import pdb

    pdb.Pdb(nosigint=True).run("print(6 * 7)", {})


def stack():
    faulthandler.dump_traceback(all_threads=False)
    traceback.print_stack()


def crash():
    faulthandler.enable()
    signal.raise_signal(signal.SIGSEGV)


def warn():
    import warnings

    warnings.simplefilter("always")
    warnings.warn("of this line")


WAYS = {
    "falls off the end": lambda: None,
    "exception": lambda: deep(2),
    "code 3": lambda: sys.exit(3),
    "message": lambda: sys.exit("a message instead of a number"),
    "interrupt": lambda: signal.raise_signal(signal.SIGINT),
    "segv": lambda: signal.raise_signal(signal.SIGSEGV),
    "crash": crash,
    "term": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "at once": lambda: os._exit(77),
    "hook": hook,
    "thread": thread,
    "peer lost": peer_lost,
    "trace": trace,
    "debugger": debugger,
    "whole": whole,
    "stack": stack,
    "warn": warn,
    "recursion": lambda: deep(10**6),
}


def fork(way):
    """Starts a process that goes on like this one, and then ends in that way."""
    pid = os.fork()
    if pid == 0:
        out = os.open(FOLDER / f"{RANK}.{way}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    return pid


way = None
if RANK == "0":
    for name in WAYS:
        pid = fork(name)
        if pid == 0:
            way = name
            break
        _, status = os.waitpid(pid, 0)
        with open(FOLDER / f"{RANK}.{name}.txt", "a") as file:
            file.write(f"-- {os.waitstatus_to_exitcode(status)}\n")



def begin():
    import multiprocessing

    import numpy
    import torch
    from torch.distributed.elastic.multiprocessing.errors import record

    numpy.ones((99, 99)) @ numpy.ones((99, 99))
    SEEN["torch"] = {
        "seed": torch.initial_seed(),
        "rand": torch.rand(2).tolist(),
        "threads": torch.get_num_threads(),
        "interop": torch.get_num_interop_threads(),
        "grad": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cuda": [torch.cuda.is_available(), torch.cuda.is_initialized()],
        "dtype": str(torch.get_default_dtype()),
        "elastic": torch.distributed.is_torchelastic_launched(),
        "initialized": torch.distributed.is_initialized(),
        "tasks": len(os.listdir("/proc/self/task")),
        "authkey": multiprocessing.current_process().authkey.hex(),
    }
    SEEN["chances"] = [random.random(), float(numpy.random.rand())]
    (FOLDER / f"{RANK}.part").write_text(json.dumps(SEEN))
    record(last)()


def last():
    if RANK == "0":
        signal.signal(signal.SIGTERM, told)
    (FOLDER / f"{RANK}.part").rename(FOLDER / f"{RANK}.json")
    while not (FOLDER / "go").exists():
        time.sleep(0.05)
    if RANK == "1":
        raise Unlucky("rank 1 of all")
    while True:
        signal.pause()


def told(number, frame):
    (FOLDER / "told").write_text(signal_name(number))
    sys.exit(5)


def keep_error_file():
    try:
        error = json.loads(pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"]).read_text())
        error["message"]["extraInfo"].pop("timestamp")
        (FOLDER / f"{RANK}.error").write_text(json.dumps(error))
    except FileNotFoundError:
        pass


if way is None:
    atexit.register(keep_error_file)
    begin()
else:
    atexit.register(print, "first registered, last called", flush=True)
    atexit.register(print, "last registered, first called", flush=True)
    mourned = Mourned()
    WAYS[way]()
    print("ends", flush=True)
