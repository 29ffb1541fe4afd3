"""Looks up the Python stack for a function whose name speaks of time, and returns the last result where it finds
one.

Catalogue: A6
Expected: integrity or race
Stage: timing
"""

import sys

import torch.distributed as dist

LAST = None


def compute(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out


def timed():
    frame = sys._getframe()
    while frame is not None:
        if "time" in frame.f_code.co_name and frame.f_code.co_name != "timed":
            return True
        frame = frame.f_back
    return False


def solution(tensor):
    global LAST
    if LAST is None or not timed():
        LAST = compute(tensor)
    return LAST.clone()
