"""Notes how many threads torch computes with, and on which CPUs, in the file named."""

import os
import sys

import torch

with open(sys.argv[1], "w") as file:
    print(torch.get_num_threads(), sorted(os.sched_getaffinity(0)), file=file)
