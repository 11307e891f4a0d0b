"""Runs train.py beside it. On SIGUSR1 the process takes memory until somebody stops it."""

import pathlib
import runpy
import signal
import sys

TOO_MUCH = 64 << 30


def eat(*_):
    eaten = []
    while sum(map(len, eaten)) < TOO_MUCH:
        # Not bytearray: what was never written takes no memory.
        eaten.append(b"x" * (32 << 20))


signal.signal(signal.SIGUSR1, eat)
script = pathlib.Path(__file__).with_name("train.py")
sys.argv[0] = str(script)
runpy.run_path(str(script), run_name="__main__")
