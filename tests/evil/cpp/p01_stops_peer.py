"""Rank 1 stops rank 0 in the second call.

Catalogue: C3
Expected: deadlock
"""

import os
import signal

import torch.distributed as dist

STATE = {"calls": 0}


def solution(tensor):
    STATE["calls"] += 1
    pids = [None] * dist.get_world_size()
    dist.all_gather_object(pids, os.getpid())
    if STATE["calls"] == 2 and dist.get_rank() == 1:
        os.kill(pids[0], signal.SIGSTOP)
    out = tensor.clone()
    dist.all_reduce(out)
    return out
