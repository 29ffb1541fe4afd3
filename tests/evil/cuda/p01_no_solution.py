"""Defines `solve` where `solution` is asked for.

Expected: api_error
"""

import torch.distributed as dist


def solve(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out
