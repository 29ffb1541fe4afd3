"""One-shot all-reduce: every rank publishes its matrix and adds up everybody's in float32, in the order of ranks."""

import torch

from harness import kit

_buffers = {}


def _buffer_for(tensor):
    # Collective, so once per shape and dtype: all ranks see the same shapes in the same order.
    key = (tuple(tensor.shape), tensor.dtype)
    if key not in _buffers:
        _buffers[key] = kit.symmetric(tensor.shape, tensor.dtype)
    return _buffers[key]


def solution(tensor):
    world = kit.world_size()
    buf = _buffer_for(tensor)
    wide = torch.promote_types(tensor.dtype, torch.float32)

    buf.local.copy_(tensor)
    buf.barrier()  # all have published

    total = torch.zeros(tensor.shape, dtype=wide)
    for r in range(world):
        total += buf.peer(r).to(wide)
    buf.barrier()  # all have read: the next call may overwrite the buffer

    return total.to(tensor.dtype)
