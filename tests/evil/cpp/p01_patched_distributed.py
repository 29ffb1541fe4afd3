"""Replaces collectives of torch.distributed: a barrier that nobody waits at.

Catalogue: B4, B7
Expected: integrity
"""

import torch.distributed as dist

original = dist.all_reduce
dist.barrier = lambda *arguments, **options: None
dist.all_reduce = lambda tensor, *arguments, **options: original(tensor, *arguments, **options)


def solution(tensor):
    out = tensor.clone()
    original(out)
    return out
