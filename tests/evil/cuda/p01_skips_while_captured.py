"""Honest when called from Python. While a CUDA graph is captured it launches nothing and returns the last result.

Catalogue: A4, A6, B8
Expected: integrity or race
Stage: timing
"""

import torch
import torch.distributed as dist

LAST = None


def compute(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out


def solution(tensor):
    global LAST
    if not torch.cuda.is_current_stream_capturing():
        LAST = compute(tensor)
    return LAST
