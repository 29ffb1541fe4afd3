"""GEMM + all-gather: each rank writes its block of columns into its slot at every peer, and all join the slots."""

import torch

from harness import kit

_slots = {}


def solution(A, B):
    rank, world = kit.rank(), kit.world_size()
    m, n, dtype = A.shape[0], B.shape[1], A.dtype
    if (m, n, dtype) not in _slots:
        _slots[m, n, dtype] = kit.symmetric((world, m, n), dtype)
    slots = _slots[m, n, dtype]

    wide = torch.promote_types(dtype, torch.float32)
    product = (A.to(wide) @ B.to(wide)).to(dtype)
    for peer in range(world):
        slots.peer(peer)[rank] = product
    slots.barrier()  # all blocks have arrived
    out = slots.local.permute(1, 0, 2).reshape(m, world * n)
    slots.barrier()  # all have copied
    return out
