"""Finds the harness's copies of timed outputs and throws them away, so that there is nothing to compare; skips the work
from then on. It finds them in the frames that a handler of signals is given.

Catalogue: B5, A4
Expected: integrity or race
Stage: timing
"""

import signal

import torch.distributed as dist

STATE = {"calls": 0, "former": None}


def forget(number, frame):
    while frame is not None:
        found = frame.f_locals.get("self")
        if type(found).__name__ == "CandidateRank":
            for value in vars(found).values():
                if isinstance(value, dict) and value and all(isinstance(key, tuple) for key in value):
                    value.clear()
        frame = frame.f_back


signal.signal(signal.SIGUSR2, forget)


def solution(tensor):
    STATE["calls"] += 1
    if STATE["calls"] > 60:
        if STATE["calls"] % 20 == 0:  # it takes a while
            signal.raise_signal(signal.SIGUSR2)
        return STATE["former"].clone()
    out = tensor.clone()
    dist.all_reduce(out)
    STATE["former"] = out
    return out
