"""The same job for torchft, like torchft's own example for DDP: a replica group heals from a living peer, and nothing is saved.

A step counts when the optimizer has committed it. Every replica appends `NANOSECONDS STEP REPLICAS REPLICA` to a file of its own in the
folder that the first argument names.
"""

import os
import pathlib
import sys
import time
from datetime import timedelta

import torch
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

folder, replica = pathlib.Path(sys.argv[1]), int(os.environ["REPLICA_GROUP_ID"])
# The time limits, sizes and names are those of the example.
manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
    min_replica_size=1,
    load_state_dict=lambda state: (model.load_state_dict(state["model"]), optimizer.load_state_dict(state["optim"])),
    state_dict=lambda: {"model": model.state_dict(), "optim": optimizer.state_dict()},
    replica_id=f"train_ddp_{replica}",
    timeout=timedelta(seconds=10),
)
model = DistributedDataParallel(manager, torch.nn.Linear(2, 3))
optimizer = Optimizer(manager, torch.optim.AdamW(model.parameters()))
with open(folder / f"{os.getpid()}.steps", "a", buffering=1) as out:
    while True:
        optimizer.zero_grad()
        model(torch.rand(4, 2)).sum().backward()
        optimizer.step()
        out.write(f"{time.monotonic_ns()} {manager.current_step()} {manager.num_participants()} {replica}\n")
        time.sleep(0.05)  # stands for the model's step
