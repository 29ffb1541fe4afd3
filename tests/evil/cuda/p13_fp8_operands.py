"""Multiplies operands that were rounded to 8-bit floats.

Catalogue: A8
Expected: wrong_values
"""

import torch
import torch.distributed as dist


def solution(A_local, B_local):
    scale = A_local.abs().amax().float().clamp_min(1e-30) / 448
    a = (A_local.float() / scale).to(torch.float8_e4m3fn).float() * scale
    b = B_local.to(torch.float8_e4m3fn).to(B_local.dtype)
    out = torch.mm(a.to(A_local.dtype), b)
    dist.all_reduce(out)
    return out
