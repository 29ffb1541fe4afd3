"""Honest for 250 calls, longer than any test and warm-up; then returns the last result for ever.

Catalogue: A4
Expected: integrity or race
Stage: timing
"""

import torch
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
    if CALLS <= 250 or torch.cuda.is_current_stream_capturing():
        LAST = compute(tensor)
    return LAST.clone()
