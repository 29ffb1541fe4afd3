"""Trap: a cache with the shape as key, and memory that grows in the first call. Right, because what it keeps is
workspace, never a result.
"""

import functools

import torch

from harness import kit


@functools.cache
def workspace(shape, dtype):
    return kit.symmetric(shape, dtype), torch.empty(shape, dtype=torch.float32)


def solution(tensor):
    buf, total = workspace(tensor.shape, tensor.dtype)
    buf.local.copy_(tensor)
    buf.barrier()
    total.zero_()
    for r in range(kit.world_size()):
        total += buf.peer(r)
    buf.barrier()
    return total.to(tensor.dtype, copy=True)
