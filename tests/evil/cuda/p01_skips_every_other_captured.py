"""Honest when called from Python. While a CUDA graph is captured it works in every other call.

Catalogue: A4, A6, B8
Expected: integrity or race
Stage: timing
"""

import torch
import torch.distributed as dist

CAPTURED = 0


def solution(tensor):
    global CAPTURED
    out = torch.empty_like(tensor)
    if torch.cuda.is_current_stream_capturing():
        CAPTURED += 1
        if CAPTURED % 2:
            return out
    out.copy_(tensor)
    dist.all_reduce(out)
    return out
