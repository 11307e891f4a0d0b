"""Trains a small language model, split over all ranks by FSDP2 (fully_shard), on the bytes of a text.

An ordinary torchrun script, in the shape of today's larger trainers: sharded parameters, a distributed checkpoint that every rank writes its part
of, and a resume onto another number of ranks. It reads only what torchrun sets. By hand:

    torchrun --standalone --nproc-per-node 2 examples/fsdp2/train.py --checkpoint-dir /tmp/bytes

On several machines --checkpoint-dir must be a folder that all of them share: each rank writes into it. --text is any file; this script is the
default.
"""

import argparse
import os
import pathlib
import shutil
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

SEED = 20261126
BYTES = 256


def main():
    options = parse_options()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(SEED)
    device = choose_device()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    mesh = init_device_mesh(device.type, (world,))

    model = Model(options.width, options.layers, options.context).to(device)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    folder = pathlib.Path(options.checkpoint_dir)
    step = resume(folder, model, optimizer, rank, world)

    text = torch.tensor(list(pathlib.Path(options.text).read_bytes()), device=device)
    while step < options.steps:
        # Which pieces of the text belong to a step depends on the step alone: a resume sees the same ones, whatever the world size.
        random = torch.Generator().manual_seed(SEED + step)
        starts = torch.randint(len(text) - options.context - 1, (options.batch_size,), generator=random)[rank::world]
        pieces = torch.stack([text[start : start + options.context + 1] for start in starts])
        optimizer.zero_grad()
        logits = model(pieces[:, :-1])
        # FSDP averages gradients over ranks, whose shares of the batch may differ by one piece.
        share = len(pieces) * world / options.batch_size
        loss = cross_entropy(logits.flatten(0, 1), pieces[:, 1:].flatten()) * share
        loss.backward()
        optimizer.step()
        step += 1
        if options.step_delay_ms:
            time.sleep(options.step_delay_ms / 1000)
        mean = loss.detach() / world
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step={step} loss={mean.item():.4f} world={world}", flush=True)
        if step % options.save_every == 0 or step == options.steps:
            save(folder, model, optimizer, step, rank)
    dist.destroy_process_group()


def parse_options():
    parser = argparse.ArgumentParser(description="A small language model with FSDP2; start it with torchrun.")
    parser.add_argument("--steps", type=int, default=200, help="steps in all, those before a restart included")
    parser.add_argument("--batch-size", type=int, default=16, help="pieces of text in a step, shared out among the ranks")
    parser.add_argument("--context", type=int, default=64, help="bytes in a piece")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--checkpoint-dir", default="bytes-checkpoint", help="created if it is not there")
    parser.add_argument("--text", default=__file__)
    parser.add_argument("--step-delay-ms", type=float, default=0, help="sleep in every step: stands in for the step time of a real model")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("RANK is not set: start this script with torchrun")
    if options.batch_size < int(os.environ["WORLD_SIZE"]):
        parser.error("--batch-size must be at least the number of ranks, so that each has a piece")
    return options


def choose_device():
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # several ranks share the cores of a laptop
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.look, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        heads = self.look(self.before(x)).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.join(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.think(self.after(x))


class Model(nn.Module):
    def __init__(self, width, layers, context):
        super().__init__()
        self.bytes, self.places = nn.Embedding(BYTES, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.out = nn.Linear(width, BYTES)

    def forward(self, x):
        h = self.bytes(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        return self.out(h)


def resume(folder, model, optimizer, rank, world):
    """The step of the newest whole checkpoint, or 0. Every rank reads its part, whatever the number of ranks that wrote it."""
    newest = [max((int(path.name) for path in folder.glob("[0-9]*") if path.name.isdecimal()), default=0)]
    # Only rank 0 looks, so that all ranks start from the same step.
    dist.broadcast_object_list(newest)
    if newest[0] == 0:
        return 0
    parameters, moments = get_state_dict(model, optimizer)
    dcp.load({"model": parameters, "optimizer": moments}, checkpoint_id=folder / str(newest[0]))
    set_state_dict(model, optimizer, model_state_dict=parameters, optim_state_dict=moments)
    if rank == 0:
        print(f"resumed at step={newest[0]} world={world}", flush=True)
    return newest[0]


def save(folder, model, optimizer, step, rank):
    """Every rank writes its part into a folder of another name, and rank 0 renames it. So a numbered folder is whole. The one before is removed."""
    partial = folder / f"partial-{step}"
    if rank == 0:
        shutil.rmtree(partial, ignore_errors=True)  # an attempt that was interrupted
        partial.mkdir(parents=True)
    dist.barrier()
    parameters, moments = get_state_dict(model, optimizer)
    dcp.save({"model": parameters, "optimizer": moments}, checkpoint_id=partial)
    if rank == 0:
        partial.rename(folder / str(step))
        for old in folder.iterdir():
            if old.name != str(step):
                shutil.rmtree(old, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
