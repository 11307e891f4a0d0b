"""Ranks that work for 20 ms and then meet in an all-reduce, over gloo, until the job is cancelled. With `slow`, rank 1 needs 30 ms more for each batch;
with `hands`, each batch is a long one for another rank. With `node FILE`, the node on which rank 1 began is slow, whichever rank is there. Each rank prints
its step now and then."""

import os
import sys
import time

import torch
import torch.distributed as dist

way = sys.argv[1]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
slow = way == "slow" and rank == 1
if way == "node":
    here = os.environ["MUSTER_NODE"]
    if rank == 1 and not os.path.exists(sys.argv[2]):
        with open(sys.argv[2], "w") as file:
            file.write(here)
    dist.barrier()
    with open(sys.argv[2]) as file:
        slow = file.read() == here
data = torch.ones(64)
step = 0
while True:
    time.sleep(0.02)
    if slow or (way == "hands" and step % world == rank):
        time.sleep(0.03)
    dist.all_reduce(data)
    data /= world
    step += 1
    if step % 20 == 0:
        print("step", step, flush=True)
