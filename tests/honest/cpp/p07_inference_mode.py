"""Trap: works in inference mode, so that its output is an inference tensor, which has no version counter. Right,
because the values are.
"""

import torch

from harness import kit

BUFFERS = {}


def solution(tensor):
    key = (tensor.shape, tensor.dtype)
    if key not in BUFFERS:
        BUFFERS[key] = kit.symmetric(tensor.shape, tensor.dtype)
    buf, rows = BUFFERS[key], tensor.shape[0] // kit.world_size()
    own = slice(kit.rank() * rows, (kit.rank() + 1) * rows)
    with torch.inference_mode():
        buf.local.copy_(tensor)
        buf.barrier()
        total = buf.peer(0)[own].to(torch.float32, copy=True)
        for r in range(1, kit.world_size()):
            total += buf.peer(r)[own]
        buf.barrier()
        return total.to(tensor.dtype)
