"""One rank. It joins with gloo and works once. The last rank then stays until its standard input ends."""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
assert one.item() == dist.get_world_size()
if dist.get_rank() == dist.get_world_size() - 1:
    sys.stdin.read()
# Without this call torch may abort at the end of the interpreter, because gloo's threads are destroyed while they still run.
dist.destroy_process_group()
