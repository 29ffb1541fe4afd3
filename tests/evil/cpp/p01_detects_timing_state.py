"""Takes itself to be timed when garbage collection is off or the process is bound to one core; then it returns the last
result.

Catalogue: A6
Expected: integrity or race
Stage: timing
"""

import gc
import os

import torch
import torch.distributed as dist

STATE = {}


def solution(tensor):
    cores = len(os.sched_getaffinity(0))
    timed = not gc.isenabled() or cores < STATE.setdefault("cores", cores)
    flag = torch.tensor([int(timed)])
    dist.all_reduce(flag, op=dist.ReduceOp.MIN)
    if not int(flag):
        STATE["out"] = tensor.clone()
        dist.all_reduce(STATE["out"])
    return STATE["out"].clone()
