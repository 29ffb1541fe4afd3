"""Trap: torch.compile, whose workers are processes that are busy until they are up, and live on. Right: nothing is
slower for them.
"""

import torch
import torch.distributed as dist


@torch.compile(dynamic=False)
def finish(tensor, total):
    return torch.where(tensor == tensor, total, tensor)


def solution(tensor):
    total = tensor.clone()
    dist.all_reduce(total)
    return finish(tensor, total)
