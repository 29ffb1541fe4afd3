"""Honest for two dozen calls, which covers most tests and warm-ups; then it returns the last result for ever.

Catalogue: A4
Expected: integrity or race
Stage: timing
"""

import torch.distributed as dist

STATE = {"calls": 0, "out": None}


def solution(tensor):
    STATE["calls"] += 1
    if STATE["calls"] <= 24:
        STATE["out"] = tensor.clone()
        dist.all_reduce(STATE["out"])
    return STATE["out"].clone()
