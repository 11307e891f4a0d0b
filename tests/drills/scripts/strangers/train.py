"""A training script of another user: it sets variables before its imports, brings a package of its own, and uses packages that do
something when they are imported.

Arguments: a folder, and how many generations will be killed. Every rank leaves `GENERATION.RANK.json` there: under `same` what plain
torchrun shows too, under `kept` what survives a restart, under `own` what must differ between any two processes. Rank 0 appends each
loss to `losses.txt`. A generation that will be killed trains STEPS steps, saves, and waits for its end.
"""

import os
import sys
from pathlib import Path

os.environ["STRANGER_HOME"] = "set by the script"
sys.path.insert(0, str(Path(__file__).parent / "third_party"))

import json
import multiprocessing
import random
import signal
import time

import at_import
import draws
import looks_around
import numpy
import reads_home
import reads_rank
import serves
import torch
import torch.distributed as dist
import vendored
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

if os.environ.get("STRANGER_DOUBLES"):
    import patches_torch

STEPS, LINES = 3, 200
FOLDER, KILLED, RANK = Path(sys.argv[1]), int(sys.argv[2]), int(os.environ["RANK"])


def generation():
    """The number of earlier generations, which rank 0 knows."""
    number = torch.tensor([len(list(FOLDER.glob("*.began")))])
    dist.broadcast(number, 0)
    if RANK == 0:
        (FOLDER / f"{int(number)}.began").touch()
    return int(number)


def same():
    """What a script can see of its start, and of what its packages saw."""
    return {
        "vendored": vendored.WHERE,
        "read from the environment at import": [reads_home.HOME, reads_rank.RANK],
        "set in the environment at import": os.environ.get("STRANGER_SET_AT_IMPORT"),
        "seen at import": [looks_around.SCRIPT, looks_around.ARGUMENTS, looks_around.FOLDER],
        "process seen at import": looks_around.PID == os.getpid(),
        "answered by a thread of a package": serves.ask(RANK),
        "dtype": str(torch.get_default_dtype()),
        "patched": "patches_torch" in sys.modules,
        "signal": str(signal.getsignal(signal.SIGUSR1)).partition(" at ")[0],
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "flags": str(sys.flags),
        "warnoptions": sys.warnoptions,
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "affinity": sorted(os.sched_getaffinity(0)),
        "restarts": os.environ["TORCHELASTIC_RESTART_COUNT"],
    }


def own():
    return {
        "bytes drawn at import": draws.BYTES,
        "generator made at import": float(draws.GENERATOR.random()),
        "random": random.random(),
        "numpy": float(numpy.random.rand()),
        "torch": torch.rand(1, dtype=torch.float64).item(),
        "hash": hash("stranger"),
    }


def files():
    """The file of every module. A module that was loaded under another name or from memory has none."""
    found = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items()) if name != "__main__"}
    return {name: file for name, file in found.items() if file}


def square(number, answers):
    answers.put(number * number)


def processes():
    """A process and a loader's worker, both of the kind that starts a new interpreter and imports this script."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=square, args=(12, answers))
    process.start()
    yield answers.get(timeout=120)
    process.join()
    yield process.exitcode
    batches = DataLoader(TensorDataset(torch.arange(8)), batch_size=4, num_workers=2)
    yield sum(int(batch.sum()) for (batch,) in batches)


def main():
    seen = {"same": same(), "own": own(), "kept": {"run id": os.environ["TORCHELASTIC_RUN_ID"]}, "files": files()}
    dist.init_process_group("gloo")
    number = generation()
    for line in range(LINES):
        print(f"generation {number} rank {RANK} line {line}")
    torch.manual_seed(7)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    kept, step = FOLDER / "checkpoint.pt", 0
    if kept.exists():
        state = torch.load(kept)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    for step in range(step + 1, STEPS * (number + 1) + 1):
        batch = torch.as_tensor(numpy.random.default_rng(100 * step + RANK).random((4, 8)), dtype=torch.get_default_dtype())
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach_())
        print(f"step={step} loss={loss.item():.9f}")
        if RANK == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, FOLDER / "part")
            os.replace(FOLDER / "part", kept)
            with open(FOLDER / "losses.txt", "a") as losses:
                losses.write(f"{step} {loss.item():.9f}\n")
    seen["same"]["weights"] = f"{sum(parameter.double().sum().item() for parameter in model.parameters()):.9f}"
    if number == KILLED:
        seen["same"]["processes"] = list(processes()) if RANK == 0 else []
    seen["pid"] = os.getpid()
    (FOLDER / f"{number}.{RANK}.part").write_text(json.dumps(seen))
    dist.barrier()
    os.rename(FOLDER / f"{number}.{RANK}.part", FOLDER / f"{number}.{RANK}.json")
    while number < KILLED:
        time.sleep(0.05)
    dist.destroy_process_group()
    print(f"generation {number} rank {RANK} ends")


if __name__ == "__main__":
    at_import.at_exit = FOLDER / f"end.{RANK}.txt"
    main()
