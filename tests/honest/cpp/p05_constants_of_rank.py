"""Trap: keeps tensors from the first call for ever. Right, because they follow from rank and number of ranks alone."""

import torch

from harness import kit

KEPT = {}


def solution(tensor, src=0):
    shape, world = tensor.shape[-2:], kit.world_size()
    key = (shape, tensor.dtype)
    if key not in KEPT:
        index = torch.tensor([kit.rank()])  # a constant
        KEPT[key] = kit.symmetric((world, *shape), tensor.dtype), index
    buf, index = KEPT[key]
    if kit.rank() == src:
        buf.local.copy_(tensor)
    buf.barrier()
    out = buf.peer(src).index_select(0, index)[0]
    buf.barrier()
    return out
