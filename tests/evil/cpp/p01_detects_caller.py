"""Remembers the functions that called it the first time; called from anywhere else it takes itself to be timed and
returns the last result.

Catalogue: A6
Expected: integrity or race
Stage: timing
"""

import sys

import torch.distributed as dist

STATE = {}


def callers():
    frame, names = sys._getframe(2), []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return tuple(names)


def solution(tensor):
    stack = callers()
    if STATE.setdefault("stack", stack) == stack or not any("time" in name for name in stack):
        STATE["out"] = tensor.clone()
        dist.all_reduce(STATE["out"])
    return STATE["out"].clone()
