"""Multiplies the first half of the inner axis only and doubles the product.

Catalogue: A10
Expected: wrong_values
"""

import torch
import torch.distributed as dist


def solution(A_local, B_local):
    half = A_local.shape[1] // 2
    out = torch.mm(A_local[:, :half], B_local[:half]) * 2
    dist.all_reduce(out)
    return out
