"""Does the work in every other call and returns the same result twice.

Catalogue: A5
Expected: integrity
"""

import torch.distributed as dist

STATE = {"calls": 0, "out": None}


def solution(tensor):
    STATE["calls"] += 1
    if STATE["calls"] % 2:
        STATE["out"] = tensor.clone()
        dist.all_reduce(STATE["out"])
    return STATE["out"].clone()
