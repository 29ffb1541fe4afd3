"""The right numbers in another dtype.

Catalogue: A8
Expected: shape_error
"""

import torch
import torch.distributed as dist


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out.to(torch.float32 if out.dtype == torch.float64 else torch.float64)
