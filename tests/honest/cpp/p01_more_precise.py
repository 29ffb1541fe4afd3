"""Trap: differs from the reference's own result. Right, because it adds in float64 and rounds once: it is nearer to the
truth than the reference is.
"""

import torch

from harness import kit

BUFFERS = {}


def solution(tensor):
    key = (tensor.shape, tensor.dtype)
    if key not in BUFFERS:
        BUFFERS[key] = kit.symmetric(tensor.shape, tensor.dtype)
    buf = BUFFERS[key]
    buf.local.copy_(tensor)
    buf.barrier()
    total = torch.zeros(tensor.shape, dtype=torch.float64)
    for r in range(kit.world_size()):
        total += buf.peer(r)
    buf.barrier()
    return total.to(tensor.dtype)
