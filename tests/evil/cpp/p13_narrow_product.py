"""Multiplies at half the width of the data: float32 as bfloat16, 16-bit types as eight-bit floats.

Catalogue: A8
Expected: wrong_values
"""

import torch
import torch.distributed as dist


def solution(A_local, B_local):
    narrow = torch.bfloat16 if A_local.dtype == torch.float32 else torch.float8_e4m3fn
    out = (A_local.to(narrow).float() @ B_local.to(narrow).float()).to(A_local.dtype)
    dist.all_reduce(out)
    return out
