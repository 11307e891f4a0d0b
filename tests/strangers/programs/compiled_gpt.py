"""A small GPT written by hand, under torch.compile and DDP. The compiled code comes from inductor's caches at every start but the first."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import left
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class GPT(nn.Module):
    def __init__(self, words=64, width=32, length=16, layers=2):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 2, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, words)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, text):
        seen = self.words(text) + self.places(torch.arange(text.shape[1]))
        return self.out(self.layers(seen, mask=self.mask))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    text = torch.randint(64, (2, 17))
    model = torch.compile(DistributedDataParallel(GPT()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    saved, step = left.FOLDER / "saved.pt", 0
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    while step < left.LAST:
        loss = nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
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
