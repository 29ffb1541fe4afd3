"""Keeps every output that it ever made.

Catalogue: C4
Expected: out_of_memory
Case: pkb
"""

import torch.distributed as dist

KEPT = []


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    if len(KEPT) < 300:  # the machine that tests this wants to live
        KEPT.append(out)
    return out
