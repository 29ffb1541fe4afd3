"""Trap: uses gc and weak references, as cheats that walk all objects do. Right, because it only looks after its own."""

import gc
import weakref

import torch.distributed as dist

ALIVE = weakref.WeakValueDictionary()
STATE = {"calls": 0}


def solution(tensor):
    STATE["calls"] += 1
    if STATE["calls"] % 64 == 0:
        gc.collect()
    out = tensor.clone()
    ALIVE[STATE["calls"]] = out
    dist.all_reduce(out)
    return out
