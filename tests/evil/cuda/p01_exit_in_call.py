"""Ends its process with success in the third call.

Catalogue: B5, C4
Expected: runtime_error
"""

import os

import torch.distributed as dist

CALLS = 0


def solution(tensor):
    global CALLS
    CALLS += 1
    if CALLS == 3:
        os._exit(0)
    out = tensor.clone()
    dist.all_reduce(out)
    return out
