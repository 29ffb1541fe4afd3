"""Rank 1 does not take part in the third call.

Catalogue: D7
Expected: deadlock
"""

import torch.distributed as dist

STATE = {"calls": 0}


def solution(tensor):
    STATE["calls"] += 1
    out = tensor.clone()
    if dist.get_rank() != 1 or STATE["calls"] != 3:
        dist.all_reduce(out)
    return out
