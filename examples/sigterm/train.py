"""Saves a checkpoint when it is told to stop (SIGTERM), and later resumes at exactly the next step.

An ordinary torchrun script. By hand: run this line, press Ctrl-C or kill torchrun, and run the line again:

    torchrun --standalone --nproc-per-node 2 examples/sigterm/train.py --checkpoint-dir /tmp/sigterm

The signal may reach one rank before the others, or only one of them. So in every step the ranks agree, by an all-reduce of one
number, whether any of them was told to stop. Then all finish that step, rank 0 saves, and all leave with 143 (128 + SIGTERM),
which means "stopped" and not "done". The position in the epoch is part of the step number, so no image is seen twice or left out.
On several machines --checkpoint-dir must be a folder that all of them share.
"""

import argparse
import os
import pathlib
import signal
import sys
import time

import numpy
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

SEED = 20261121
STOPPED = 128 + signal.SIGTERM

stop_asked = False


def ask_stop(_signal, _frame):
    global stop_asked
    stop_asked = True


def main():
    signal.signal(signal.SIGTERM, ask_stop)  # before the slow parts, so that a stop during start-up is not lost
    options = parse_options()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")

    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32, device=device) / 16
    labels = torch.tensor(digits.target, device=device)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=options.lr, momentum=0.9)
    checkpoint = pathlib.Path(options.checkpoint_dir) / "checkpoint.pt"
    step = resume(checkpoint, net, optimizer, rank, world)
    model = DistributedDataParallel(net)

    stopped = False
    while step < options.steps and not stopped:
        batch = batch_of(step, len(images), options.batch_size)
        mine = torch.from_numpy(batch[rank::world]).to(device)
        optimizer.zero_grad()
        # Scaled so that DDP's average is the mean over the global batch, even if the ranks' shares differ by one image.
        loss = cross_entropy(model(images[mine]), labels[mine], reduction="sum") * (world / len(batch))
        loss.backward()
        optimizer.step()
        step += 1
        if options.step_delay_ms:
            time.sleep(options.step_delay_ms / 1000)

        shared = torch.stack([loss.detach() / world, torch.tensor(float(stop_asked), device=device)])
        dist.all_reduce(shared)
        mean, stopped = shared[0].item(), shared[1].item() > 0
        if rank == 0:
            print(f"step={step} loss={mean:.6f} world={world}", flush=True)

    if rank == 0:
        save(checkpoint, {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step})
        print(f"{'stopped' if stopped else 'done'}, saved at step={step} world={world}", flush=True)
    dist.barrier()  # no rank leaves before the checkpoint is on disk
    dist.destroy_process_group()
    return STOPPED if stopped and step < options.steps else 0


def parse_options():
    parser = argparse.ArgumentParser(description="Checkpoint on SIGTERM; start it with torchrun.")
    parser.add_argument("--steps", type=int, default=1000, help="steps in all, those before a restart included")
    parser.add_argument("--batch-size", type=int, default=60, help="global batch, shared out among the ranks")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--checkpoint-dir", default="sigterm-checkpoint", help="created if it is not there")
    parser.add_argument("--step-delay-ms", type=float, default=100, help="stands in for the step time of a real model")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("RANK is not set: start this script with torchrun")
    if options.steps < 1 or options.batch_size < 1:
        parser.error("--steps and --batch-size must be at least 1")
    return options


def batch_of(step, images, batch_size):
    """The images of a global step: whole epochs, each in a new order, cut into batches. It depends only on the step."""
    batches = -(-images // batch_size)
    epoch, position = divmod(step, batches)
    order = numpy.random.default_rng([SEED, epoch]).permutation(images)
    return order[position * batch_size : (position + 1) * batch_size]


def resume(path, net, optimizer, rank, world):
    box = [None]
    if rank == 0 and path.exists():
        box[0] = torch.load(path, map_location="cpu", weights_only=True)
    dist.broadcast_object_list(box)
    state = box[0]
    if state is None:
        return 0
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    if rank == 0:
        print(f"resumed at step={state['step']} world={world}", flush=True)
    return state["step"]


def save(path, state):
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


if __name__ == "__main__":
    sys.exit(main())
