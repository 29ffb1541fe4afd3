"""Leaves the last rank's slot empty.

Catalogue: D2
Expected: wrong_values
"""

import torch
import torch.distributed as dist


def solution(tensor):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    parts[-1].zero_()
    return torch.stack(parts)
