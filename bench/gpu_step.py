"""The script of the ranks of bench/gpu.py: data-parallel training on a GPU, with a checkpoint that the next start loads.

Argument: a folder. The N-th start leaves `begun.N.json` there when it begins, and `step.N.json`, with the time, after its first step.
"""

import json
import os
import pathlib
import sys
import time

import torch
from torch import distributed, nn

FOLDER = pathlib.Path(sys.argv[1])
# Starts are counted by these files and not by a variable, because each competitor counts in its own way.
START = len(list(FOLDER.glob("begun.*.json")))
WIDTH = 1024
SAVE_EVERY = 10


def leave(name):
    part = FOLDER / f"{name}.part"
    part.write_text(json.dumps({"at": time.monotonic(), "pid": os.getpid()}))
    part.rename(FOLDER / f"{name}.json")


def main():
    leave(f"begun.{START}")
    distributed.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)).to(device)
    checkpoint = FOLDER / "checkpoint.pt"
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device)
        net.load_state_dict(saved["net"])
        step = saved["step"]
    model = nn.parallel.DistributedDataParallel(net, device_ids=[device.index])
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    batch = torch.randn(256, WIDTH, device=device)
    first = True
    while True:
        optimizer.zero_grad()
        loss = ((model(batch) - batch) ** 2).mean()
        loss.backward()
        optimizer.step()
        step += 1
        print(f"step={step} loss={loss.item():.6f}", flush=True)
        if first:
            leave(f"step.{START}")
            first = False
        if step % SAVE_EVERY == 0:
            torch.save({"net": net.state_dict(), "step": step}, checkpoint.with_suffix(".part"))
            checkpoint.with_suffix(".part").rename(checkpoint)
        time.sleep(0.02)


main()
