"""Asks the scheduler for real-time priority and the lowest nice value, so that whoever else is timed comes second.
Where that is granted it goes on honestly.

Catalogue: B7, B9
Expected: runtime_error
"""

import os

import torch.distributed as dist


def solution(tensor):
    os.setpriority(os.PRIO_PROCESS, 0, -20)
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    out = tensor.clone()
    dist.all_reduce(out)
    return out
