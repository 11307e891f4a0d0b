# One process of a job of `muster check nodes`. It multiplies matrices whose product is known, reduces a tensor whose sum is
# known together with the other processes, and prints a line of JSON after each. It ends with 0 whatever it has found, so that
# Muster restarts nothing and charges no node.
import json
import os
import sys
import time
from datetime import timedelta


def say(stage, **facts):
    place = {"node": os.environ.get("MUSTER_NODE", ""), "rank": int(os.environ.get("RANK", "0"))}
    print(json.dumps({"musterCheck": stage, **place, **facts}), flush=True)


def shown(error):
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:300]


def matmul(torch, device, size, times):
    # All products and sums are whole numbers below 2**24, so they are exact in every order, also in TF32.
    at = torch.arange(size, device=device)
    row, column = (at % 3 + 1).float(), (at % 2 + 1).float()
    one = row[:, None] * (at % 4 - 1).float()[None, :]
    other = (at % 5 - 2).float()[:, None] * column[None, :]
    total = sum((k % 4 - 1) * (k % 5 - 2) for k in range(size))
    expected = row[:, None] * column[None, :] * total
    best, wrong = float("inf"), 0
    for _ in range(times):
        wait(torch, device)
        start = time.perf_counter()
        product = torch.mm(one, other)
        wait(torch, device)
        best = min(best, time.perf_counter() - start)
        wrong = max(wrong, int((product != expected).sum()))
    say("matmul", seconds=best, wrong=wrong, of=size * size)


def all_reduce(torch, dist, device, count, times):
    world, rank = dist.get_world_size(), dist.get_rank()
    base = (torch.arange(count, device=device) % 251).float()
    expected = base * world + world * (world - 1) // 2
    best, wrong = float("inf"), 0
    for _ in range(times):
        tensor = base + rank
        dist.barrier()
        wait(torch, device)
        start = time.perf_counter()
        dist.all_reduce(tensor)
        wait(torch, device)
        best = min(best, time.perf_counter() - start)
        wrong = max(wrong, int((tensor != expected).sum()))
    say("allReduce", seconds=best, wrong=wrong, of=count, bytes=count * 4, world=world)
    # Whoever leaves first must not reset the connection under the others.
    dist.barrier()


def wait(torch, device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def check(limit, on_gpu):
    try:
        import torch
        import torch.distributed as dist
    except Exception as error:
        return say("unknown", why=f"{sys.executable} cannot import torch: {shown(error)}")
    if on_gpu and not (torch.version.cuda or torch.version.hip):
        return say("unknown", why=f"torch {torch.__version__} of {sys.executable} is built without CUDA")
    try:
        device = torch.device("cpu")
        if on_gpu:
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        # GPU: 1.1e12 operations; CPU: 2.7e8.
        matmul(torch, device, *((8192, 20) if on_gpu else (512, 20)))
    except Exception as error:
        say("matmul", error=shown(error))
        device = torch.device("cpu")
    if int(os.environ["WORLD_SIZE"]) < 2:
        return None
    try:
        dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(seconds=limit))
        # 256 MiB, and 4 MiB.
        all_reduce(torch, dist, device, *((1 << 26, 20) if on_gpu else (1 << 20, 10)))
    except Exception as error:
        say("allReduce", error=shown(error))
    return None


check(int(sys.argv[1]), sys.argv[2] == "gpu")
sys.stdout.flush()
# A process group that has failed may never come down.
os._exit(0)
