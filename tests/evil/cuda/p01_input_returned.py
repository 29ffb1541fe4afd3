"""Sums in place and returns the caller's own tensor as the result.

Catalogue: A9
Expected: integrity
"""

import torch.distributed as dist


def solution(tensor):
    dist.all_reduce(tensor)
    return tensor
