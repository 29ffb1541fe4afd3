"""Gradients of a norm's scale and shift: each rank publishes two vectors of column sums, and all add up everybody's."""

import torch

from harness import kit

_buffers = {}


def solution(X_hat, dY):
    world = kit.world_size()
    dtype, columns = dY.dtype, dY.shape[1]
    wide = torch.promote_types(dtype, torch.float32)
    if (columns, dtype) not in _buffers:
        _buffers[columns, dtype] = kit.symmetric((2, columns), wide)
    sums = _buffers[columns, dtype]

    gradient = dY.to(wide)
    sums.local[0] = (gradient * X_hat.to(wide)).sum(0)
    sums.local[1] = gradient.sum(0)
    sums.barrier()  # all have published
    total = torch.zeros(2, columns, dtype=wide)
    for r in range(world):
        total += sums.peer(r)
    sums.barrier()  # all have read

    d_gamma, d_beta = total.to(dtype)
    return d_gamma, d_beta
