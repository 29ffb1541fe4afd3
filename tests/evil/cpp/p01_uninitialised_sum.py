"""Adds to memory that it never cleared: right as long as new memory happens to be zero.

Catalogue: A11
Expected: wrong_values
"""

import torch

from harness import kit

BUFFERS = {}


def solution(tensor):
    key = (tensor.shape, tensor.dtype)
    if key not in BUFFERS:
        BUFFERS[key] = kit.symmetric(tensor.shape, tensor.dtype)
    buf = BUFFERS[key]
    buf.local.copy_(tensor)
    buf.barrier()
    # A temporary as any program has: its memory is what the next allocation gets.
    largest = [(buf.peer(r).double() + 1).abs().max() for r in range(kit.world_size())]
    total = torch.empty(tensor.shape, dtype=torch.float64)
    for r in range(len(largest)):
        total += buf.peer(r)
    buf.barrier()
    return total.to(tensor.dtype)
