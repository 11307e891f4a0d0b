#!/bin/sh
# An interpreter that is bad on some nodes, for the drill of `muster check nodes`. It is called as `PYTHON -u -c CODE ...`, and puts its own
# code first. CORRUPTS: a node whose matmul has one wrong number. CUT: one that reduces with nobody. HANGS: one that says nothing.
real=@PYTHON@
spoil=
if [ "$MUSTER_NODE" = "@CORRUPTS@" ]; then
    spoil='
import torch
right = torch.mm
def mm(*args):
    product = right(*args)
    product[0, 0] += 1
    return product
torch.mm = mm
'
fi
if [ "$MUSTER_NODE" = "@CUT@" ]; then
    spoil='
import torch.distributed
def all_reduce(tensor):
    raise RuntimeError("its link is down")
torch.distributed.all_reduce = all_reduce
'
fi
if [ "$MUSTER_NODE" = "@HANGS@" ]; then
    exec sleep 600
fi
shift 2
code=$1
shift
exec "$real" -u -c "$spoil$code" "$@"
