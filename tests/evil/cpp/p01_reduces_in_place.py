"""Sums into its input and returns that: no copy made.

Catalogue: A9
Expected: integrity
"""

import torch.distributed as dist


def solution(tensor):
    dist.all_reduce(tensor)
    return tensor
