"""Sequence shards to head shards: each rank publishes all of its heads and pulls its own ones from every peer."""

import torch

from harness import kit

_buffers = {}


def solution(x, seq_dim, head_dim, group=None, unpadded_dim_size=0):
    rank, world = kit.rank(), kit.world_size()
    key = (tuple(x.shape), x.dtype)
    if key not in _buffers:
        _buffers[key] = kit.symmetric(x.shape, x.dtype)
    buf = _buffers[key]

    buf.local.copy_(x)
    buf.barrier()  # all have published
    heads = x.shape[head_dim] // world
    parts = [buf.peer(r).narrow(head_dim, rank * heads, heads) for r in range(world)]
    whole = torch.cat(parts, dim=seq_dim)
    buf.barrier()  # all have read
    if unpadded_dim_size % world:
        whole = whole.narrow(seq_dim, 0, unpadded_dim_size)
    return whole.contiguous()
