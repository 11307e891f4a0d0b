"""The job of the goodput bench: an endless loop of tiny all-reduces over gloo. It saves its progress, and resumes from what was saved.

Rank 0 writes the step into the file `saved` every SAVE_EVERY steps. The first argument is the folder, the second is SAVE_EVERY.
It prints the step as most scripts do. silent.py runs it without that.
After each step every rank appends `NANOSECONDS STEP WORLD RANK` to a file of its own there, named after its pid.
"""

import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

folder, every = pathlib.Path(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
saved, part = folder / "saved", folder / "saved.part"
first = torch.tensor([int(saved.read_text()) if rank == 0 and saved.exists() else 0])
dist.broadcast(first, 0)
step = int(first)
with open(folder / f"{os.getpid()}.steps", "a", buffering=1) as out:
    while True:
        step += 1
        members = torch.ones(1)
        dist.all_reduce(members)
        assert int(members) == world, f"step {step}: {int(members)} took part in a world of {world}"
        if rank == 0 and step % every == 0:
            part.write_text(str(step))
            part.replace(saved)
        if rank == 0:
            print(f"step={step}", flush=True)
        out.write(f"{time.monotonic_ns()} {step} {world} {rank}\n")
        time.sleep(0.05)  # stands for the model's step
