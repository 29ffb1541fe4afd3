"""Takes the peers' slices for weights that never change: only its own slice is new after the first call.

Catalogue: A3
Expected: integrity or wrong_values
"""

import torch
import torch.distributed as dist

FIRST = {}


def solution(tensor):
    key = (tensor.shape, tensor.dtype)
    if key not in FIRST:
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, tensor)
        FIRST[key] = torch.stack(parts)
    out = FIRST[key].clone()
    out[dist.get_rank()] = tensor
    return out
