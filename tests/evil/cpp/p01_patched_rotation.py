"""Finds the list of inputs that timed calls go round and cuts it to one, so that every call finds its data in a cache.

Catalogue: B5, A3
Expected: integrity or race or runtime_error
Stage: timing
"""

import gc

import torch.distributed as dist

STATE = {"calls": 0}


def cut():
    for found in gc.get_objects():
        if type(found).__name__ in ("Ring",):
            for name, value in vars(found).items():
                if isinstance(value, list) and len(value) > 1 and isinstance(value[0], tuple):
                    setattr(found, name, value[:1])


def solution(tensor):
    STATE["calls"] += 1
    if STATE["calls"] % 16 == 0:
        cut()
    out = tensor.clone()
    dist.all_reduce(out)
    return out
