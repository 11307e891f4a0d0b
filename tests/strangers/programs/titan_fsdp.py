"""As torchtitan trains: fully_shard over a device mesh, and a distributed checkpoint that every rank writes a part of and that any world can load."""

import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import left
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    seen, wanted = torch.rand(4, 24), torch.rand(4, 24)
    model = nn.Sequential(*[part for _ in range(3) for part in (nn.Linear(24, 24), nn.Tanh())])
    for part in model:
        if isinstance(part, nn.Linear):
            fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    saved, step = left.FOLDER / "saved", 0
    if saved.exists():
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments, "step": torch.zeros(())}
        checkpoint.load(state, checkpoint_id=saved)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        step = int(state["step"])
    while step < left.LAST:
        loss = nn.functional.mse_loss(model(seen), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        weights, moments = get_state_dict(model, optimizer)
        part = left.FOLDER / f"part-{step}"
        if dist.get_rank() == 0 and part.exists():
            shutil.rmtree(part)  # of a world that was broken while it saved
        dist.barrier()
        checkpoint.save({"model": weights, "optimizer": moments, "step": torch.tensor(float(step))}, checkpoint_id=part)
        if dist.get_rank() == 0:
            shutil.rmtree(saved, ignore_errors=True)
            part.rename(saved)
        dist.barrier()
        left.step(step, loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
