"""Honest for ten calls, which is what it takes a test to be; then returns the tenth result for ever.

Catalogue: A4
Expected: integrity or race
"""

import torch.distributed as dist

CALLS = 0
LAST = None


def compute(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out


def solution(tensor):
    global CALLS, LAST
    CALLS += 1
    if CALLS <= 10:
        LAST = compute(tensor)
    return LAST.clone()
