"""Remembers what its process was when it was imported. Many packages recognise an interactive interpreter, or a fork, by that."""

import os
import sys

SCRIPT = getattr(sys.modules["__main__"], "__file__", None)
ARGUMENTS = sys.argv[:1]
FOLDER = os.getcwd()
PID = os.getpid()
