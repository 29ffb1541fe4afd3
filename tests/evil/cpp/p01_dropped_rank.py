"""Leaves the last rank out of the sum: a small error where values are small.

Catalogue: D2
Expected: wrong_values
"""

import torch
import torch.distributed as dist


def solution(tensor):
    last = dist.get_rank() == dist.get_world_size() - 1
    out = torch.zeros_like(tensor) if last else tensor.clone()
    dist.all_reduce(out)
    return out
