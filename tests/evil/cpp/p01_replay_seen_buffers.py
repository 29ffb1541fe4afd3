"""Honest the first two times that it sees an address, then it replays what it last computed there. Timed calls go
round a few buffers, tests do not.

Catalogue: A3, A4
Expected: integrity or race
Stage: timing
"""

import torch
import torch.distributed as dist

SEEN = {}


def solution(tensor):
    entry = SEEN.setdefault(tensor.data_ptr(), [0, None])
    known = torch.tensor([int(entry[0] >= 2 and entry[1].shape == tensor.shape)])
    dist.all_reduce(known, op=dist.ReduceOp.MIN)
    if not int(known):
        entry[1] = tensor.clone()
        dist.all_reduce(entry[1])
    entry[0] += 1
    return entry[1].clone()
