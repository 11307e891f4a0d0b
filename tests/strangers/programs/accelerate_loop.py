"""A training loop of its own, with accelerate. It saves and loads its state."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import left
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


def main():
    set_seed(7)
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    loader = DataLoader(TensorDataset(torch.rand(1, 8).repeat(10_000, 1)), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01), loader)
    saved, step = left.FOLDER / "saved", 0
    if (saved / "step").exists():
        name = (saved / "step").read_text()
        accelerator.load_state(saved / name)
        step = int(name)
    for (batch,) in loader:
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        accelerator.save_state(saved / str(step))
        if accelerator.is_main_process:
            (saved / "part").write_text(str(step))
            (saved / "part").replace(saved / "step")
        accelerator.wait_for_everyone()
        left.step(step, loss)
        if step >= left.LAST:
            break
    accelerator.end_training()


if __name__ == "__main__":
    main()
