"""Trap: reads its own shard from the input and not from the buffer, and returns without a barrier after its last read.
Right, because the sums that are read last are overwritten only after the next call's first barrier.
"""

import torch

from harness import kit

BUFFERS = {}


def solution(tensor):
    world, rank, n = kit.world_size(), kit.rank(), tensor.numel()
    key = (n, tensor.dtype)
    if key not in BUFFERS:
        BUFFERS[key] = kit.symmetric((2, n), tensor.dtype)
    buf, flat, out = BUFFERS[key], tensor.flatten(), torch.empty_like(tensor)
    cuts = [n * r // world for r in range(world + 1)]
    shards = [slice(cuts[r], cuts[r + 1]) for r in range(world)]
    own = shards[rank]
    buf.local[0].copy_(flat)
    buf.barrier()
    total = flat[own].to(torch.float32, copy=True)
    for r in range(world):
        if r != rank:
            total += buf.peer(r)[0, own]
    buf.local[1, own] = total.to(tensor.dtype)
    buf.barrier()
    for r in range(world):
        out.view(-1)[shards[r]] = buf.peer(r)[1, shards[r]]
    return out
