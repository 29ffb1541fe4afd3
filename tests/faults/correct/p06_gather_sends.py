"""Gather with one message from each rank to the root."""

import torch.distributed as dist

from harness import kit


def solution(tensor, dst=0):
    rank, world = kit.rank(), kit.world_size()
    if rank != dst:
        dist.send(tensor.contiguous(), dst)
        return tensor
    out = tensor.new_empty(world, *tensor.shape)
    for source in range(world):
        if source == dst:
            out[source] = tensor
        else:
            dist.recv(out[source], source)
    return out
