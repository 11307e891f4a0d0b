"""Ranks that are told to end. `save DIR`: trains with a DataLoader of two workers, and each rank writes DIR/saved.RANK when any was
told to end. `deaf`: never ends by SIGTERM. `leave DIR`: ends well, and leaves a process behind that writes DIR/told when it is told to
end, and ends when DIR/go is there."""

import os
import pathlib
import signal
import subprocess
import sys
import time

LEFT = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: (folder / "told").touch())
(folder / "begun").touch()
while not (folder / "go").exists():
    time.sleep(0.02)
(folder / "copied").touch()
"""


def save(folder):
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader

    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    dist.init_process_group("gloo")
    for step, _ in enumerate(DataLoader(range(10**7), batch_size=4, num_workers=2), 1):
        flag = torch.tensor([float(bool(told))])
        dist.all_reduce(flag)
        print(f"step={step}", flush=True)
        time.sleep(0.02)
        if flag.item():
            (folder / f"saved.{dist.get_rank()}").write_text(str(step))
            sys.exit(0)


def deaf():
    signal.signal(signal.SIGTERM, lambda *_: None)
    print("step=1", flush=True)
    while True:
        time.sleep(0.1)


def leave(folder):
    subprocess.Popen([sys.executable, "-c", LEFT, str(folder), "--token=secret"])
    while not (folder / "begun").exists():
        time.sleep(0.02)
    print("step=1", flush=True)


if sys.argv[1] == "deaf":
    deaf()
else:
    {"save": save, "leave": leave}[sys.argv[1]](pathlib.Path(sys.argv[2]))
os.write(1, b"the script ends\n")
