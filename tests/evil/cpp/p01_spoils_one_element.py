"""The right result, but one element of the input has changed: its own bookkeeping, written through a storage alias so
that the version counter stays.

Catalogue: A9
Expected: integrity
"""

import torch
import torch.distributed as dist


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    alias = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    alias[tensor.numel() // 3] += 1
    return out
