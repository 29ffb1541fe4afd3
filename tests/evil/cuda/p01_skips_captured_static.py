"""Honest when called from Python, always with the same tensor as its output. While a CUDA graph is captured it works in
every third call: where outputs overwrite each other, those in between are hard to see.

Catalogue: A4, A6, B8
Expected: integrity or race
Stage: timing
"""

import torch
import torch.distributed as dist

OUTPUTS = {}
CAPTURED = 0


def solution(tensor):
    global CAPTURED
    out = OUTPUTS.setdefault(tensor.shape, torch.empty_like(tensor))
    if torch.cuda.is_current_stream_capturing():
        CAPTURED += 1
        if CAPTURED % 3:
            return out
    out.copy_(tensor)
    dist.all_reduce(out)
    return out
