"""Keeps 64 MiB more with every call.

Catalogue: C4
Expected: out_of_memory
"""

import torch
import torch.distributed as dist

KEPT = []


def solution(tensor):
    KEPT.append(torch.zeros(64 << 20, dtype=torch.uint8, device=tensor.device))
    out = tensor.clone()
    dist.all_reduce(out)
    return out
