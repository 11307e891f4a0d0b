"""Runs a script that prints steps, without its output: a job of which nobody sees a step.

    python silent.py SCRIPT ARGUMENTS

Only what the script prints is left out. Errors stay, because a job that fails says why.
"""

import os
import runpy
import sys

sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
sys.stdout = open(os.devnull, "w")
runpy.run_path(sys.argv[0], run_name="__main__")
