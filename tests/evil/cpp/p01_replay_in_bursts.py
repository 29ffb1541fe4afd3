"""Honest if some time has passed since the last call, as in a test; in quick succession it returns the last result.

Catalogue: A4, A6
Expected: race or integrity
"""

import time

import torch
import torch.distributed as dist

STATE = {"at": 0.0, "out": None}


def solution(tensor):
    quick = torch.tensor([int(time.monotonic() - STATE["at"] < 0.001 and STATE["out"] is not None)])
    dist.all_reduce(quick, op=dist.ReduceOp.MAX)
    if not int(quick) or STATE["out"] is None:
        STATE["out"] = tensor.clone()
        dist.all_reduce(STATE["out"])
    STATE["at"] = time.monotonic()
    return STATE["out"].clone()
