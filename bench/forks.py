"""The lowest floor: an interpreter that has imported torch forks the ranks of one world, and nothing supervises them.

    python bench/forks.py SCRIPT ARGUMENTS...

It prints `ready` when torch is imported. A line `RANKS PORT` on its input starts a world. It ends when its input ends.
"""

import os
import runpy
import sys

import torch.distributed  # noqa: F401  (the ranks find it imported)

print("ready", flush=True)
for line in sys.stdin:
    ranks, port = map(int, line.split())
    for rank in range(ranks):
        if os.fork() == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            sys.argv = sys.argv[1:]
            runpy.run_path(sys.argv[0], run_name="__main__")
            os._exit(0)
