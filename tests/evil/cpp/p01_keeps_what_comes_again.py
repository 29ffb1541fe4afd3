"""Answers inputs that have come a dozen times in a row with what it has worked out for them: PKB's method repeats them.

Catalogue: A3, A6
Expected: integrity
Stage: timing
Case: pkb
Protocol: pkb
"""

import torch
import torch.distributed as dist

KEPT = {}


def solution(tensor):
    some = tensor.view(-1)[:: max(1, tensor.numel() // 64)].clone()
    known, times, out = KEPT.get(tensor.data_ptr(), (some, 0, None))
    times = times + 1 if torch.equal(known, some) else 1
    if times <= 12:
        out = tensor.clone()
        dist.all_reduce(out)
    KEPT[tensor.data_ptr()] = some, times, out
    return out
