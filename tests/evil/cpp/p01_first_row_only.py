"""Sums the first row; the rest is each rank's own.

Catalogue: A10
Expected: wrong_values
"""

import torch.distributed as dist


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out[0])
    return out
