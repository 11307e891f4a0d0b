"""Writes the number of torch's threads, and the CPUs on which they run, into the named file."""

import os
import sys

import torch

with open(sys.argv[1], "w") as file:
    print(torch.get_num_threads(), sorted(os.sched_getaffinity(0)), file=file)
