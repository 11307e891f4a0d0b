"""accelerate under torchrun's variables: each process has a part of the data, and accelerate saves and loads the state."""

import os
import pathlib
import sys
import time

import torch
from accelerate import Accelerator

folder, steps = pathlib.Path(sys.argv[1]), int(sys.argv[2])
accelerator = Accelerator(cpu=True)
rank, world = accelerator.process_index, accelerator.num_processes
model = torch.nn.Linear(1, 1)
torch.nn.init.zeros_(model.weight)
torch.nn.init.zeros_(model.bias)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5))
x = torch.arange(192).reshape(-1, 1)[rank::world] / 192

told, step = folder / "step", 0
if told.exists():
    step = int(told.read_text())
    accelerator.load_state(folder / str(step))
while step < steps:
    optimizer.zero_grad()
    accelerator.backward((model(x) - (3 * x + 1)).square().mean())
    optimizer.step()
    step += 1
    print(f"step {step} world {world}", flush=True)
    if step % 5 == 0:
        accelerator.save_state(folder / str(step))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            (folder / "part").write_text(str(step))
            os.replace(folder / "part", told)
    time.sleep(0.1)
if rank == 0:
    print("end", repr(sum(float(value.detach()) for value in model.parameters())), flush=True)
accelerator.end_training()
