"""Three ranks make three steps over gloo. Then rank 1 does what the first argument says, and the others wait for it in an all-reduce."""

import ctypes
import sys
import time

import torch
import torch.distributed as dist


def load_batch():
    while True:
        time.sleep(0.01)  # load_batch


def hold():
    libc = ctypes.PyDLL(None)
    while True:
        libc.usleep(600_000_000)  # hold


dist.init_process_group("gloo")
data = torch.ones(4)
for step in range(1, 4):
    dist.all_reduce(data)
    print(f"step {step}", flush=True)
if dist.get_rank() == 1:
    {"load": load_batch, "hold": hold}[sys.argv[1]]()
dist.all_reduce(data)  # waits
