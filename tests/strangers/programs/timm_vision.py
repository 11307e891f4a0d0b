"""A tiny network of timm, transforms of torchvision, DDP, and loader workers, as the references of both train."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import left
import timm
import torch
import torch.distributed as dist
from timm.optim import create_optimizer_v2
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torchvision import datasets
from torchvision.transforms import v2


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = DistributedDataParallel(timm.create_model("test_vit", num_classes=4, img_size=32))
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3)
    change = v2.Compose([v2.Grayscale(3), v2.Resize(32), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    samples = datasets.FakeData(size=1, image_size=(3, 40, 40), num_classes=4, transform=change)
    repeated = torch.utils.data.Subset(samples, [0] * 10_000)
    saved, step = left.FOLDER / "saved.pt", 0
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    for images, labels in DataLoader(repeated, batch_size=2, num_workers=1):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, left.FOLDER / "part")
            os.replace(left.FOLDER / "part", saved)
        dist.barrier()
        left.step(step, loss)
        if step >= left.LAST:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
