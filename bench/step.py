"""The job of the race: an endless loop of tiny all-reduces over gloo. A plain torchrun script that resumes nothing.

Every rank appends to a file of its own, named after its pid and its PID namespace, in the folder that is the only argument: ranks in
different containers may have the same pid. A line starts with CLOCK_MONOTONIC in nanoseconds, one clock for all processes of a machine.
Then follows `started`, `imported` or `joined`, or, after a completed all-reduce, `STEP WORLD RANK TOKEN`. The token is the moment at which
rank 0 started and travels through the all-reduce itself, so ranks that show the same token in a step have made that step together.
"""

import os
import sys
import time

out = open(os.path.join(sys.argv[1], f"{os.getpid()}-{os.stat('/proc/self/ns/pid').st_ino}.steps"), "a", buffering=1)


def note(text, at=None):
    out.write(f"{at or time.monotonic_ns()} {text}\n")


started = time.monotonic_ns()
note("started", started)

import torch  # noqa: E402  (its import is timed)
import torch.distributed as dist  # noqa: E402

note("imported")
dist.init_process_group("gloo")
note("joined")
rank, world = dist.get_rank(), dist.get_world_size()
step = 0
while True:
    step += 1
    total = torch.tensor([1, started if rank == 0 else 0])
    dist.all_reduce(total)
    members, token = total.tolist()
    assert members == world, f"step {step}: {members} took part in a world of {world}"
    note(f"{step} {world} {rank} {token}")
    time.sleep(0.05)  # stands for the model's step
