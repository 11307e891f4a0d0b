"""The part that all programs here share: it leaves what the program saw and its losses, and waits where the test wants it to.

`FOLDER/until` holds the step up to which the world may train. A rank that has reached it leaves
`RANK.PID.json`.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch

FOLDER, LAST = Path(sys.argv[1]), int(sys.argv[2])
RANK = int(os.environ["RANK"])
LOOK = 0.05
told = False


def until():
    return int((FOLDER / "until").read_text())


def step(number, loss):
    """Call it after each step, with the number of steps made in all generations."""
    global told
    if RANK == 0:
        with open(FOLDER / "losses.txt", "a") as losses:
            losses.write(f"{number} {float(loss):.6f}\n")
    print(f"step={number} loss={float(loss):.6f} rank={RANK}", flush=True)
    while number >= until() and number < LAST:
        if told != number:
            leave(number)
            told = number
        time.sleep(LOOK)
    if number >= LAST:
        leave(number)


def leave(number):
    """Leaves values that must be equal in all lanes and generations."""
    files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items()) if name != "__main__"}
    seen = {
        "step": number,
        "pid": os.getpid(),
        "world": int(os.environ["WORLD_SIZE"]),
        "restarts": int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
        "run id": os.environ["TORCHELASTIC_RUN_ID"],
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "flags": str(sys.flags),
        "dtype": str(torch.get_default_dtype()),
        "threads": torch.get_num_threads(),
        "affinity": sorted(os.sched_getaffinity(0)),
        "environment": {name: value for name, value in os.environ.items() if name.startswith(("HF_", "TOKENIZERS_", "KMP_", "OMP_"))},
        "files": {name: file for name, file in files.items() if file},
    }
    part = FOLDER / f"{RANK}.{os.getpid()}.part"
    part.write_text(json.dumps(seen))
    os.rename(part, FOLDER / f"{RANK}.{os.getpid()}.json")
