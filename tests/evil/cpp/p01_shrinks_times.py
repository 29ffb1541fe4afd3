"""Honest in every block that has audits; where it has none (the harness's look from outside) it returns old results.
It shrinks the times that its caller has measured so far, which lie in a list.

Catalogue: B6, B5
Expected: integrity or race
Stage: timing
"""

import sys

import torch.distributed as dist

STATE = {}


def timer():
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "time_eager":
            return frame.f_locals
        frame = frame.f_back
    return None


def solution(tensor):
    local = timer()
    if local is not None:
        times = local["times"]
        for i, value in enumerate(times):
            if value > 100:
                times[i] = value / 20
        if not local["plan"].audit_chance and "out" in STATE:
            return STATE["out"]
    STATE["out"] = tensor.clone()
    dist.all_reduce(STATE["out"])
    return STATE["out"]
