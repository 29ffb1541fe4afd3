"""Trap: off the root it neither sends nor receives, and only the root works. Right, because the root reads its peers'
buffers itself, and all wait until it has.
"""

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
    if kit.rank() == dst:
        out = torch.stack([buf.peer(r).float() for r in range(kit.world_size())]).sum(0).to(tensor.dtype)
    else:
        out = tensor.clone()
    buf.barrier()
    return out
