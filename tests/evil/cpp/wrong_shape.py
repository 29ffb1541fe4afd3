"""The right numbers in one dimension instead of two.

Expected: shape_error
"""

import torch.distributed as dist


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out.flatten()
