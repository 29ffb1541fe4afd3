"""Trap: off the root the output is the input itself. Right, because the problem says so: its reference does it."""

import torch

from harness import kit

BUFFERS = {}


def solution(tensor, dst=0):
    key = (tensor.shape, tensor.dtype)
    if key not in BUFFERS:
        BUFFERS[key] = kit.symmetric(tensor.shape, tensor.dtype)
    buf = BUFFERS[key]
    buf.local.copy_(tensor)
    buf.barrier()
    out = torch.stack([buf.peer(r) for r in range(kit.world_size())]) if kit.rank() == dst else tensor
    buf.barrier()
    return out
