"""Trains a small conv net on scikit-learn's handwritten digits with DistributedDataParallel.

An ordinary torchrun script. It reads only what torchrun sets, and knows nothing of Muster. By hand:

    torchrun --standalone --nproc-per-node 2 examples/digits/train.py --checkpoint-dir /tmp/digits

Rank 0 writes a checkpoint after every epoch, and a restart resumes from it, so a restart costs at most the current epoch.
The world size may differ between starts: the global batch, the order of the images and the gradient do not depend on it.
On several machines --checkpoint-dir must be a folder that all of them share, because any of them can have rank 0 next time.
"""

import argparse
import os
import pathlib
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
TEST_IMAGES = 360  # of 1,797


def main():
    options = parse_options()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)  # several ranks share the cores of a laptop
    torch.manual_seed(SEED)
    device = choose_device()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    train_images, train_labels, test_images, test_labels = load_images(device)
    net = make_net().to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=options.lr)
    checkpoint = pathlib.Path(options.checkpoint_dir) / "checkpoint.pt"
    epoch, step = resume(checkpoint, net, optimizer, rank, world)
    model = DistributedDataParallel(net)

    while epoch < options.epochs:
        order = numpy.random.default_rng([SEED, epoch]).permutation(len(train_images))
        for start in range(0, len(order), options.batch_size):
            batch = order[start : start + options.batch_size]
            mine = torch.from_numpy(batch[rank::world]).to(device)
            optimizer.zero_grad()
            # DDP averages gradients over ranks, whose shares of the batch may differ by one image. Sum and scale, so that
            # the result is the mean over the global batch for every world size.
            loss = cross_entropy(model(train_images[mine]), train_labels[mine], reduction="sum") * (world / len(batch))
            loss.backward()
            optimizer.step()
            step += 1
            if options.step_delay_ms:
                time.sleep(options.step_delay_ms / 1000)
            if step % options.log_every == 0:
                mean = loss.detach() / world
                dist.all_reduce(mean)
                if rank == 0:
                    print(f"step={step} epoch={epoch} loss={mean.item():.4f} world={world}", flush=True)
        epoch += 1
        if rank == 0:
            save(checkpoint, {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch, "step": step})

    if rank == 0:
        with torch.no_grad():
            accuracy = (net(test_images).argmax(1) == test_labels).float().mean().item()
        print(f"test accuracy {accuracy:.4f} world={world} steps={step}", flush=True)
    dist.destroy_process_group()


def parse_options():
    parser = argparse.ArgumentParser(description="Handwritten digits with DDP; start it with torchrun.")
    parser.add_argument("--epochs", type=positive(int), default=30, help="epochs in all, those before a restart included")
    parser.add_argument("--batch-size", type=positive(int), default=64, help="global batch, shared out among the ranks")
    parser.add_argument("--lr", type=positive(float), default=0.002)
    parser.add_argument("--log-every", type=positive(int), default=1, metavar="STEPS")
    parser.add_argument("--checkpoint-dir", default="digits-checkpoint", help="created if it is not there")
    parser.add_argument(
        "--step-delay-ms",
        type=float,
        default=0,
        help="sleep in every step: stands in for the step time of a real model, these images take a millisecond",
    )
    options = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("RANK is not set: start this script with torchrun")
    return options


def positive(kind):
    def parse(text):
        value = kind(text)
        if value <= 0:
            raise argparse.ArgumentTypeError(f"{text} is not greater than 0")
        return value

    return parse


def choose_device():
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def load_images(device):
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16  # pixels are 0 to 16
    labels = torch.tensor(digits.target)
    order = torch.from_numpy(numpy.random.default_rng(SEED).permutation(len(images)))
    images, labels = images[order].to(device), labels[order].to(device)
    return images[TEST_IMAGES:], labels[TEST_IMAGES:], images[:TEST_IMAGES], labels[:TEST_IMAGES]


def make_net():
    # No batch norm: its statistics would depend on how many ranks share the batch.
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def resume(path, net, optimizer, rank, world):
    """Only rank 0 reads the file, and sends it to the others, so that all ranks start from the same state."""
    box = [None]
    if rank == 0 and path.exists():
        box[0] = torch.load(path, map_location="cpu", weights_only=True)
    dist.broadcast_object_list(box)
    state = box[0]
    if state is None:
        return 0, 0
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    if rank == 0:
        print(f"resumed at step={state['step']} epoch={state['epoch']} world={world}", flush=True)
    return state["epoch"], state["step"]


def save(path, state):
    """Whenever the machine stops, either the old checkpoint or the new one is there and complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


if __name__ == "__main__":
    sys.exit(main())
