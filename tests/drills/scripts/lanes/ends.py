"""Ends in the way its second argument names; what it leaves and says is compared."""

import atexit
import os
import pathlib
import signal
import sys
import threading
import time

folder, way = pathlib.Path(sys.argv[1]), sys.argv[2]
atexit.register(lambda: (folder / "atexit").write_text("ran"))


class Unlucky(Exception):
    pass


def deep(levels):
    if levels:
        deep(levels - 1)
    try:
        {}["missing"]
    except KeyError as error:
        raise Unlucky("as asked") from error


if way == "exception":
    deep(2)
elif way == "exit3":
    sys.exit(3)
elif way == "message":
    sys.exit("a message instead of a number")
elif way == "segv":
    signal.raise_signal(signal.SIGSEGV)
elif way == "interrupt":
    raise KeyboardInterrupt
elif way == "hook":
    sys.excepthook = lambda kind, error, trace: print("hook saw", kind.__name__, len(trace.tb_frame.f_code.co_filename) > 0, file=sys.stderr)
    raise Unlucky("to the hook")
elif way == "thread":
    threading.Thread(target=lambda: (time.sleep(0.3), (folder / "thread").write_text("ended"))).start()
elif way == "term":
    os.kill(os.getpid(), signal.SIGTERM)
elif way == "abort":
    os._exit(77)
