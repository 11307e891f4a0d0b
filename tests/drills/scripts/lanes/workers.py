"""Processes that a script makes itself: DataLoader workers of every kind, spawn with a class of `__main__`, a pool, a thread."""

import concurrent.futures
import multiprocessing
import os
import pathlib
import pickle
import sys
import threading

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, at):
        return torch.tensor(at * 2)


class Box:
    def __init__(self, value):
        self.value = value


def unbox(box, queue):
    queue.put(Box(box.value + 1))


def square(number):
    return number * number


def main():
    dist.init_process_group("gloo")
    shown = [f"rank {dist.get_rank()}"]
    for method in ("fork", "spawn", "forkserver"):
        loader = DataLoader(Numbers(), batch_size=4, num_workers=1, multiprocessing_context=method)
        shown.append(f"{method} {sum(int(batch.sum()) for batch in loader)}")
    for method in ("spawn", "fork"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=unbox, args=(Box(41), queue))
        process.start()
        shown.append(f"{method} {queue.get(timeout=60).value}")
        process.join()
        shown.append(str(process.exitcode))
    shown.append(str(pickle.loads(pickle.dumps(Box(7))).value) + " " + Box.__module__)
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        shown.append(str(list(pool.map(square, range(4)))))
    thread = threading.Thread(target=lambda: shown.append("thread"))
    thread.start()
    thread.join()
    total = torch.ones(1)
    dist.all_reduce(total)
    shown.append(str(int(total)))
    dist.destroy_process_group()
    (pathlib.Path(sys.argv[1]) / f"{os.environ['RANK']}.txt").write_text("\n".join(shown))


if __name__ == "__main__":
    main()
