"""Sends itself a signal, whose handler is given its callers' frames: it works where the timed loop's own variables say
that the output is kept, and elsewhere returns an old result.

Catalogue: A6, B5
Expected: integrity or race
Stage: timing
"""

import signal

import torch.distributed as dist

STATE = {}


def is_kept(loop):
    # The others are drawn by each rank when this call has returned.
    return loop["i"] == loop["lottery"]._last


def look(number, frame):
    STATE["works"] = True
    while frame is not None:
        if frame.f_code.co_name == "time_eager":
            STATE["works"] = is_kept(frame.f_locals)
        frame = frame.f_back


signal.signal(signal.SIGUSR2, look)


def solution(tensor):
    signal.raise_signal(signal.SIGUSR2)
    if STATE["works"]:
        STATE["out"] = tensor.clone()
        dist.all_reduce(STATE["out"])
    return STATE["out"]
