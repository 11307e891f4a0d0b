"""Changes its process when it is imported: a variable, a signal handler, a function for the end."""

import atexit
import os
import signal

os.environ.setdefault("STRANGER_SET_AT_IMPORT", "by a package")
at_exit = None


def handler(number, frame):
    pass


def leave():
    if at_exit:
        with open(at_exit, "a") as file:
            file.write(f"{os.getpid()}\n")


signal.signal(signal.SIGUSR1, handler)
atexit.register(leave)
