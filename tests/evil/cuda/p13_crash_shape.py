"""The right numbers in one dimension instead of two.

Expected: shape_error
"""

import torch
import torch.distributed as dist


def solution(A_local, B_local):
    out = torch.mm(A_local, B_local)
    dist.all_reduce(out)
    return out.flatten()
