"""Shows, as one JSON line per rank in the folder given first, all that a script can see of how it was started."""

import atexit
import json
import os
import pathlib
import random
import signal
import sys
import threading

seen = {
    "argv": sys.argv[2:],
    "argv0": sys.argv[0],
    "orig_argv": sys.orig_argv[1:-2],
    "executable": sys.executable,
    "path": sys.path,
    "cwd": os.getcwd(),
    "main": {name: repr(value) for name, value in globals().items() if name.startswith("__") and name not in ("__loader__",)},
    "loader": type(__loader__).__name__,
    "main_is_main": sys.modules["__main__"].__dict__ is globals(),
    "flags": str(sys.flags),
    "warnoptions": sys.warnoptions,
    "env": dict(sorted(os.environ.items())),
    "signals": {signal.Signals(n).name: str(signal.getsignal(n)).partition(" at ")[0] for n in sorted(signal.valid_signals()) if n < 32},
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "stdin": [sys.stdin.read(), sys.stdin.name, os.fstat(0).st_rdev],
    "stdio": [[s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty()] for s in (sys.stdout, sys.stderr)],
    "group_leader": os.getpgrp() == os.getpid(),
    "threads": [thread.name for thread in threading.enumerate()],
    "first_file": os.open("/dev/null", os.O_RDONLY),
    "umask": os.umask(0o22),
    "nice": os.getpriority(os.PRIO_PROCESS, 0),
    "dont_write_bytecode": sys.dont_write_bytecode,
    "excepthook": sys.excepthook is sys.__excepthook__,
    "recursion": sys.getrecursionlimit(),
    "switch": sys.getswitchinterval(),
}
import numpy  # noqa: E402
import torch  # noqa: E402

seen["torch"] = {
    "seed": torch.initial_seed(),
    "rand": torch.rand(2).tolist(),
    "threads": torch.get_num_threads(),
    "interop": torch.get_num_interop_threads(),
    "grad": torch.is_grad_enabled(),
    "cuda": torch.cuda.is_available(),
    "dtype": str(torch.get_default_dtype()),
}
rank = os.environ["RANK"]
folder = pathlib.Path(sys.argv[1])
(folder / f"{rank}.random").write_text(f"{random.random()} {numpy.random.rand()}")
(folder / f"{rank}.json").write_text(json.dumps(seen))
atexit.register(lambda: (folder / f"{rank}.atexit").write_text("ran"))
