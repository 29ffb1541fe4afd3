"""Starts the collective and returns without waiting for it.

Catalogue: B1
Expected: race or wrong_values or integrity
Case: pkb
"""

import collections

import torch.distributed as dist

PENDING = collections.deque(maxlen=8)


def solution(tensor):
    out = tensor.clone()
    PENDING.append(dist.all_reduce(out, async_op=True))
    return out
