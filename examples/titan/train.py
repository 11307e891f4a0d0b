"""The loop of a pretraining code such as torchtitan, as short as it can be: a model that begins on the meta device and is split by fully_shard over a
device mesh, accumulated gradients, a clipped norm, a schedule of the learning rate, and checkpoints that are written while training goes on.

An ordinary torchrun script; examples/README.md has the command that runs it. On several machines --checkpoint-dir must be a folder that all of
them share: each rank writes its part into it, and any number of ranks can read it.
"""

import argparse
import os
import pathlib

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

BYTES, SEED = 256, 20261127


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.look, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        heads = self.look(self.before(x)).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        x = x + self.join(scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).reshape(batch, length, width))
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
            h = checkpoint(block, h, use_reentrant=False)  # computed again in backward, instead of kept
        return self.out(h)


class Training:
    """All that a checkpoint holds, as torch.distributed.checkpoint wants it."""

    def __init__(self, model, optimizer, schedule):
        self.model, self.optimizer, self.schedule, self.step = model, optimizer, schedule, 0

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "schedule": self.schedule.state_dict(), "step": self.step}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.step = state["step"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--checkpoint-dir", type=pathlib.Path, default="titan-checkpoint")
    options = parser.parse_args()
    batch, context, accumulate = 8, 64, 2  # pieces of text of one rank in one pass, their bytes, and passes in a step

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, mesh = dist.get_rank(), init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("shard",))
    savers = dist.new_group(backend="gloo")  # of its own: what it does beside training must not mix with training's collectives

    with torch.device("meta"):
        model = Model(64, 2, context)
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh)
    model.to_empty(device=device)
    torch.manual_seed(SEED + rank)  # each rank makes only its own part
    for part in model.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 20))
    training, saving = Training(model, optimizer, schedule), None

    # The file .metadata comes last, so a checkpoint that has it is whole.
    whole = sorted((int(found.parent.name) for found in options.checkpoint_dir.glob("*/.metadata")), reverse=True)[:1]
    dist.broadcast_object_list(newest := whole or [0])  # what rank 0 saw counts for all
    if newest[0]:
        dcp.load({"training": training}, checkpoint_id=options.checkpoint_dir / str(newest[0]))

    text = torch.tensor(list(pathlib.Path(__file__).read_bytes()), device=device)
    while training.step < options.steps:
        total = torch.zeros((), device=device)
        for part in range(accumulate):
            model.set_requires_gradient_sync(part == accumulate - 1)  # gradients travel once a step
            draw = torch.Generator().manual_seed((training.step * accumulate + part) * 4096 + rank)
            starts = torch.randint(len(text) - context - 1, (batch,), generator=draw)
            pieces = torch.stack([text[start : start + context + 1] for start in starts])
            loss = cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten()) / accumulate
            loss.backward()
            total += loss.detach()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        training.step += 1
        dist.all_reduce(total)
        norm = norm.full_tensor().item()
        if rank == 0:
            print(f"step: {training.step}  loss: {total.item() / dist.get_world_size():.4f}  grad_norm: {norm:.4f}", flush=True)
        if training.step % options.save_every == 0 or training.step == options.steps:
            if saving:
                saving.result()  # the one before must be on disk
            saving = dcp.async_save({"training": training}, checkpoint_id=options.checkpoint_dir / str(training.step), process_group=savers)
    if saving:
        saving.result()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
