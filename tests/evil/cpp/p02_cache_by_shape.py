"""Gathers once per shape and returns that ever after.

Catalogue: A3
Expected: integrity
"""

import torch
import torch.distributed as dist

from harness import kit

RESULTS = {}


def solution(tensor):
    if tensor.shape not in RESULTS:
        parts = [torch.empty_like(tensor) for _ in range(kit.world_size())]
        dist.all_gather(parts, tensor)
        RESULTS[tensor.shape] = torch.stack(parts)
    return RESULTS[tensor.shape].clone()
