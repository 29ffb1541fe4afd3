"""Closes every file descriptor that is not its own.

Catalogue: C4, B5
Expected: runtime_error or integrity
"""

import os

import torch.distributed as dist


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    os.closerange(3, 1024)
    return out
