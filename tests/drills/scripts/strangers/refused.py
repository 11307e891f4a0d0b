"""Rank 1 asks a missing server of its own, and ends with the library's message: a connection was refused, and it was not a peer's.

Output that it had not yet written then is written when its objects are destroyed, as in any program.
"""

import gzip
import os
import socket
import sys
import time
import urllib.request
from pathlib import Path

import torch
import torch.distributed as dist

FOLDER, RANK = Path(sys.argv[1]), int(os.environ["RANK"])


class Ledger:
    def __init__(self):
        self.lines = ["closed"]

    def __del__(self):
        FOLDER.joinpath(f"{RANK}.ledger.txt").write_text("\n".join(self.lines))


ledger = Ledger()
packed = gzip.open(FOLDER / f"{RANK}.gz", "wt")
packed.write("all of it")
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
print("step=1", flush=True)
if RANK == 1:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nothing listens there
        urllib.request.urlopen(f"http://127.0.0.1:{taken.getsockname()[1]}/tokens")
while True:
    time.sleep(0.05)
