"""Mean reduce-scatter and RMS norm: each rank pulls its rows from all ranks, averages and normalises them."""

import torch

from harness import kit

_buffers = {}


def solution(rs_input_1d, gamma, eps):
    rank, world = kit.rank(), kit.world_size()
    hidden = gamma.numel()
    key = (rs_input_1d.numel(), rs_input_1d.dtype)
    if key not in _buffers:
        _buffers[key] = kit.symmetric((rs_input_1d.numel(),), rs_input_1d.dtype)
    buf = _buffers[key]

    buf.local.copy_(rs_input_1d)
    buf.barrier()  # all have published

    wide = torch.promote_types(gamma.dtype, torch.float32)
    block = rs_input_1d.numel() // world
    total = torch.zeros(block, dtype=wide)
    for r in range(world):
        total += buf.peer(r)[rank * block : (rank + 1) * block].to(wide)
    buf.barrier()  # all have read

    rows = (total / world).view(-1, hidden)
    variance = rows.square().mean(-1, keepdim=True)
    normalised = rows * torch.rsqrt(variance + eps)
    return (normalised * gamma.to(wide)).to(gamma.dtype)
