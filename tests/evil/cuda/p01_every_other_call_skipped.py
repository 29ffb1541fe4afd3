"""From the ninth call on every second call returns what the one before it did.

Catalogue: A5
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
    if CALLS < 9 or CALLS % 2:
        LAST = compute(tensor)
    return LAST.clone()
