"""One rank: joins with gloo and works once; the last rank then stays until its standard input ends."""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
assert one.item() == dist.get_world_size()
if dist.get_rank() == dist.get_world_size() - 1:
    sys.stdin.read()
# Without this torch may abort at the end of the interpreter, where gloo's threads are torn down under way.
dist.destroy_process_group()
