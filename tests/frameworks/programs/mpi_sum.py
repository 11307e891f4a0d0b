"""MPI on several nodes: each rank has a part of the data, and all fit one line through it."""

import json
import os
import sys
import time

from mpi4py import MPI

folder, steps = sys.argv[1], int(sys.argv[2])
world = MPI.COMM_WORLD
share = [number / 64 for number in range(world.rank, 256, world.size)]


def slopes(line):
    """The gradient of the mean squared error of `line` for y = 3 x + 1, over the parts of all ranks."""
    errors = [(line[0] * x + line[1] - (3 * x + 1), x) for x in share]
    own = (sum(2 * error * x for error, x in errors), sum(2 * error for error, _ in errors))
    return [world.allreduce(part) / 256 for part in own]


saved = os.path.join(folder, "line.json")
state = {"step": 0, "line": [0.0, 0.0]}
if world.rank == 0 and os.path.exists(saved):
    with open(saved, encoding="utf-8") as file:
        state = json.load(file)
state = world.bcast(state)
step, line = state["step"], state["line"]
while step < steps:
    line = [value - 0.05 * slope for value, slope in zip(line, slopes(line))]
    step += 1
    if world.rank == 0:
        print(f"step {step} world {world.size}", flush=True)
        if step % 5 == 0:
            with open(saved + ".part", "w", encoding="utf-8") as part:
                json.dump({"step": step, "line": line}, part)
            os.replace(saved + ".part", saved)
    time.sleep(0.1)
if world.rank == 0:
    print("end", repr(sum(line)), flush=True)
