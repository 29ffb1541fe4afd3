"""Trap: addresses of outputs come back. Right, because three buffers take turns and each is filled anew."""

import torch
import torch.distributed as dist

RINGS = {}
STATE = {"calls": 0}


def solution(tensor):
    key = (tensor.shape, tensor.dtype)
    if key not in RINGS:
        RINGS[key] = [torch.empty_like(tensor) for _ in range(3)]
    STATE["calls"] += 1
    out = RINGS[key][STATE["calls"] % 3]
    out.copy_(tensor)
    dist.all_reduce(out)
    return out
