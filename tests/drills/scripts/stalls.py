"""Three ranks make three steps over gloo. Then rank 1 does what the first argument says, and the others wait for it in an all-reduce. After `save` and
`work` all go on and end. In the second generation nothing happens."""

import ctypes
import os
import sys
import time

import torch
import torch.distributed as dist

SECONDS = 16


def load_batch():
    time.sleep(600)  # load_batch


def hold():
    libc = ctypes.PyDLL(None)
    while True:  # The signal of a look ends the sleep.
        libc.usleep(600_000_000)  # hold


def skip():
    dist.barrier()  # skip


def save():
    with open(sys.argv[2], "wb") as file:
        for _ in range(SECONDS):
            file.write(b"x" * (256 << 10))
            file.flush()
            time.sleep(1)


def work():
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        sum(range(10_000))


dist.init_process_group("gloo")
data = torch.ones(4)
for step in range(1, 4):
    dist.all_reduce(data)
    print(f"step {step}", flush=True)
again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
if dist.get_rank() == 1 and not again:
    {"load": load_batch, "hold": hold, "skip": skip, "save": save, "work": work}[sys.argv[1]]()
dist.all_reduce(data)  # waits
print("step 4", flush=True)
dist.destroy_process_group()
