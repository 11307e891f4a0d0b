"""The smallest training job that can be broken in every way. Every step is one all-reduce over gloo, and its result is checked.

An unchanged torchrun script. Rank 0 keeps the step in a file, so that a new generation goes on where the last one was.
Options: --steps N, --delay-ms M, --state FILE, --exit-code C at step --fail-at S on rank --fail-rank R (once: it leaves a marker file).
"""

import argparse
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--delay-ms", type=int, default=50)
    parser.add_argument("--state", type=pathlib.Path, required=True)
    parser.add_argument("--fail-at", type=int)
    parser.add_argument("--fail-rank", type=int, default=0)
    parser.add_argument("--exit-code", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    start = torch.tensor([int(args.state.read_text()) if rank == 0 and args.state.exists() else 0])
    dist.broadcast(start, 0)
    for step in range(int(start) + 1, args.steps + 1):
        marker = args.state.with_suffix(".failed")
        if step == args.fail_at and rank == args.fail_rank and not marker.exists():
            marker.touch()
            print("ValueError: asked to fail", file=sys.stderr, flush=True)
            os._exit(args.exit_code)
        total = torch.tensor([rank + 1])
        dist.all_reduce(total)
        assert int(total) == world * (world + 1) // 2, f"step {step}: wrong members: {int(total)} in a world of {world}"
        if rank == 0:
            part = args.state.with_suffix(".part")
            part.write_text(str(step))
            part.replace(args.state)
        print(f"step={step} world={world} rank={rank}", flush=True)
        time.sleep(args.delay_ms / 1000)
    dist.destroy_process_group()
    print(f"done world={world}", flush=True)


main()
