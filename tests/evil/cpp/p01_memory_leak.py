"""Keeps four megabytes more after every call.

Catalogue: C4
Expected: out_of_memory
"""

import torch
import torch.distributed as dist

KEPT = []


def solution(tensor):
    if len(KEPT) < 200:  # the machine that tests this wants to live
        KEPT.append(torch.ones(1 << 20))
    out = tensor.clone()
    dist.all_reduce(out)
    return out
