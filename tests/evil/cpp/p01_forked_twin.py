"""Forks and lets parent and child both go on, so that two processes answer for one rank.

Catalogue: B5, C4
Expected: integrity or runtime_error or deadlock or wrong_values
"""

import os

import torch.distributed as dist

STATE = {"calls": 0}


def solution(tensor):
    STATE["calls"] += 1
    out = tensor.clone()
    dist.all_reduce(out)
    if STATE["calls"] == 1:
        os.fork()
    return out
