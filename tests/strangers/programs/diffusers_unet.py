"""A small UNet of diffusers that learns to remove noise, with its scheduler, over DDP."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
os.environ["HF_HUB_OFFLINE"] = "1"

import left
import torch
import torch.distributed as dist
from diffusers import DDPMScheduler, UNet2DModel
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    blocks = {"down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",), "block_out_channels": (8,), "norm_num_groups": 4}
    model = DistributedDataParallel(UNet2DModel(sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, add_attention=False, **blocks))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    noise, times = torch.randn(2, 1, 8, 8), torch.tensor([3, 70])
    noisy = DDPMScheduler(num_train_timesteps=100).add_noise(torch.rand(2, 1, 8, 8), noise, times)
    saved, step = left.FOLDER / "saved.pt", 0
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    while step < left.LAST:
        loss = torch.nn.functional.mse_loss(model(noisy, times).sample, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, left.FOLDER / "part")
            os.replace(left.FOLDER / "part", saved)
        dist.barrier()
        left.step(step, loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
