"""Trap: the output is a view into a larger, kept workspace which the next call overwrites. Right, because what a call
returns has to hold until the next call, and the memory is not the input's.
"""

import torch

from harness import kit

WORKSPACES = {}


def solution(tensor):
    key = (tensor.shape, tensor.dtype)
    if key not in WORKSPACES:
        WORKSPACES[key] = kit.symmetric(tensor.shape, tensor.dtype), torch.empty((3, *tensor.shape), dtype=tensor.dtype)
    buf, work = WORKSPACES[key]
    buf.local.copy_(tensor)
    buf.barrier()
    work[1] = sum(buf.peer(r).float() for r in range(kit.world_size()))
    buf.barrier()
    return work[1]
