"""Ranks that end, or fail to start, at different times. First argument: a folder.

`early`: rank 1 fails before it joins, and the others wait for it. `late`: rank 1 succeeds, and rank 0 does when the file `go` is there.
"""

import os
import pathlib
import sys
import time

import torch.distributed as dist

folder, way = pathlib.Path(sys.argv[1]), sys.argv[2]
if way == "early" and os.environ["RANK"] == "1":
    while not (folder / "waits").exists():
        time.sleep(0.05)
    sys.exit("no data on this node")
(folder / "waits").touch()
dist.init_process_group("gloo")
print("step=1", flush=True)
dist.barrier()
dist.destroy_process_group()
while os.environ["RANK"] == "0" and not (folder / "go").exists():
    time.sleep(0.05)
