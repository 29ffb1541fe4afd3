"""Looks up in the frames that call it whether this call's sample is audited; works only where it is.

Catalogue: A6, B5
Expected: integrity or race
Stage: timing
"""

import sys

import torch.distributed as dist

STATE = {}


def looked_at():
    frame = sys._getframe(2)
    while frame is not None:
        if "lottery" in frame.f_locals:
            return frame.f_locals["i"] == frame.f_locals["lottery"]._last
        frame = frame.f_back
    return True


def solution(tensor):
    if looked_at():
        STATE["out"] = tensor.clone()
        dist.all_reduce(STATE["out"])
    return STATE["out"]
