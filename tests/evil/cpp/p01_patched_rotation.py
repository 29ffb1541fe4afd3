"""Finds the list of inputs that timed calls go round and cuts it to one, so that every call finds its data in a cache.
It finds it in the frames that a handler of signals is given.

Catalogue: B5, A3
Expected: integrity or race or runtime_error
Stage: timing
"""

import signal

import torch.distributed as dist

STATE = {"calls": 0}


def cut(number, frame):
    while frame is not None:
        rank = frame.f_locals.get("self")
        if type(rank).__name__ == "CandidateRank":
            found = rank._state.ring
            for name, value in list(vars(found).items()):
                if isinstance(value, list) and len(value) > 1 and isinstance(value[0], tuple):
                    setattr(found, name, value[:1])
        frame = frame.f_back


signal.signal(signal.SIGUSR2, cut)


def solution(tensor):
    STATE["calls"] += 1
    if STATE["calls"] % 16 == 0:
        signal.raise_signal(signal.SIGUSR2)
    out = tensor.clone()
    dist.all_reduce(out)
    return out
