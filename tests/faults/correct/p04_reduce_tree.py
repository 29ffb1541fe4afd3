"""Reduce along a binary tree: partial sums of ranks at distance 1, 2, 4, ... from each other meet at the root."""

import torch

from harness import kit

_buffers = {}


def solution(tensor, dst=0):
    rank, world = kit.rank(), kit.world_size()
    key = (tuple(tensor.shape), tensor.dtype)
    if key not in _buffers:
        _buffers[key] = kit.symmetric(tensor.shape, torch.promote_types(tensor.dtype, torch.float32))
    partial = _buffers[key]

    partial.local.copy_(tensor)
    place = (rank - dst) % world  # the root's is 0
    distance = 1
    while distance < world:
        partial.barrier()  # sums of the level below are there
        if place % (2 * distance) == 0 and place + distance < world:
            partial.local.add_(partial.peer((rank + distance) % world))
        distance *= 2
    partial.barrier()  # all have read
    return partial.local.to(tensor.dtype, copy=True) if rank == dst else tensor.clone()
