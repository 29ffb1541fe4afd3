"""Trap: the first call takes half a second longer than any other. Right, because that is set-up (it stands for choosing
the fastest of several kernels).
"""

import time

import torch.distributed as dist

STATE = {}


def solution(tensor):
    if not STATE:
        time.sleep(0.5)
        STATE["ready"] = True
    out = tensor.clone()
    dist.all_reduce(out)
    return out
