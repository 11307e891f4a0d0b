"""What training scripts do beside training: DDP, DataLoader workers of every kind, processes, pickles, a compiled function, a debugger.

Run it as a module with a folder as argument; `short` behind it leaves out the compiled function. Every rank leaves `RANK.RESTARTS.txt` there, one finding a line. If `again` is in the folder,
the first generation reports a step and fails when `go` is there, so that a second one starts from a launcher.
"""

import concurrent.futures
import multiprocessing
import os
import pathlib
import pickle
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

FOLDER, RESTARTS = pathlib.Path(sys.argv[1]), os.environ.get("MUSTER_RESTART_COUNT", "0")


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


def loaders():
    for method in ("fork", "spawn", "forkserver"):
        loader = DataLoader(Numbers(), batch_size=4, num_workers=1, multiprocessing_context=method)
        yield f"{method} {sum(int(batch.sum()) for batch in loader)}"


def processes():
    for method in ("spawn", "fork"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=unbox, args=(Box(41), queue))
        process.start()
        yield f"{method} {queue.get(timeout=60).value}"
        process.join()
        yield str(process.exitcode)
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        yield str(list(pool.map(square, range(4))))
    yield f"{pickle.loads(pickle.dumps(Box(7))).value} {Box.__module__} {pickle.dumps(Box)!r}"
    told = []
    thread = threading.Thread(target=told.append, args=("thread",))
    thread.start()
    thread.join()
    yield from told


def compiled():
    def smooth(x):
        return torch.relu(x * 2 + 1).sum(dim=1).sin()

    x = torch.arange(12.0).reshape(3, 4)
    fast = torch.compile(smooth)
    yield f"compiled {torch.allclose(fast(x), smooth(x))} {torch._dynamo.utils.counters['stats']['unique_graphs']}"


def data_parallel():
    """Two ranks, five steps. Every rank must end with the same weights, in every lane."""
    torch.manual_seed(7)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        loss = model(torch.rand(4, 8) + dist.get_rank()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    yield f"loss {loss.item():.6f} weights {sum(parameter.sum().item() for parameter in model.parameters()):.6f}"


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    found = [f"{__name__} {__spec__.name} {__package__!r} {sys.argv[1] == str(FOLDER)} {sys.argv[2:]}"]
    # The slow parts are shared between the ranks, so that both of two cores are busy.
    parts = [data_parallel, loaders] if rank == 0 else [data_parallel, processes]
    if rank == 1 and "short" not in sys.argv[2:]:
        parts.append(compiled)
    for part in parts:
        found += part()
    dist.barrier()
    (FOLDER / f"{rank}.{RESTARTS}.part").write_text("\n".join(found))
    (FOLDER / f"{rank}.{RESTARTS}.part").rename(FOLDER / f"{rank}.{RESTARTS}.txt")
    if RESTARTS == "0" and (FOLDER / "again").exists():
        print("step=1", flush=True)
        while not (FOLDER / "go").exists():
            time.sleep(0.05)
        os._exit(1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
