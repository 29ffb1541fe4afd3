"""Copy-engine all-gather with one barrier: a rank stages its next input while a slow peer still pulls the former one.
The last rank pulls in 64 pieces per peer and is always the slow one.

Catalogue: D5
Expected: race
"""

import torch

from harness import kit

BUFFERS = {}


def solution(tensor):
    rank, world = kit.rank(), kit.world_size()
    key = (tensor.shape, tensor.dtype)
    if key not in BUFFERS:
        BUFFERS[key] = kit.symmetric((tensor.numel(),), tensor.dtype)
    buf = BUFFERS[key]
    out = torch.empty((world, tensor.numel()), dtype=tensor.dtype, device=tensor.device)
    buf.local.copy_(tensor.view(-1))
    buf.barrier()
    pieces = 64 if rank == world - 1 else 1
    for step in range(world):
        r = (rank + step) % world
        for to, part in zip(out[r].chunk(pieces), buf.peer(r).chunk(pieces), strict=True):
            to.copy_(part)
    return out.view(world, *tensor.shape)
