"""As the best-known published example does it: copy into the symmetric buffer, one barrier, read the peers, one static
output, no second barrier. In Python, so the window is short and only skew opens it.

Catalogue: D5
Expected: race
Case: odd
"""

import torch

from harness import kit

BUFFERS = {}


def solution(tensor):
    key = (tensor.shape, tensor.dtype)
    world = kit.world_size()
    if key not in BUFFERS:
        out = torch.empty((world, *tensor.shape), dtype=tensor.dtype)
        BUFFERS[key] = kit.symmetric(tensor.shape, tensor.dtype), out
    buf, out = BUFFERS[key]
    buf.local.copy_(tensor)
    buf.barrier()
    for _ in range(4):  # what a larger tensor would take
        for r in range(world):
            out[r].copy_(buf.peer(r))
    return out
