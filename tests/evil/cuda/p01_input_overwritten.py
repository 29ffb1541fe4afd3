"""Sums in place, in the caller's own tensor, and returns a copy of it.

Catalogue: A9
Expected: integrity
"""

import torch.distributed as dist


def solution(tensor):
    dist.all_reduce(tensor)
    return tensor.clone()
