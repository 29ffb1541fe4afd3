"""Trap: the same input gives other bits in another call, because each call adds the ranks in another order. Right,
because each order rounds as well as any other, and all ranks use the same one.
"""

import torch

from harness import kit

BUFFERS = {}
STATE = {"calls": 0}


def solution(tensor):
    key, world = (tensor.shape, tensor.dtype), kit.world_size()
    if key not in BUFFERS:
        BUFFERS[key] = kit.symmetric(tensor.shape, tensor.dtype)
    buf, first = BUFFERS[key], STATE["calls"] % world
    STATE["calls"] += 1
    buf.local.copy_(tensor)
    buf.barrier()
    total = torch.zeros(tensor.shape)
    for step in range(world):
        total += buf.peer((first + step) % world)
    buf.barrier()
    return total.to(tensor.dtype)
