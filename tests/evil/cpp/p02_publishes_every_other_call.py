"""Takes part in every barrier, but copies its data into the shared buffer in every other call only.

Catalogue: A5
Expected: integrity
"""

import torch

from harness import kit

BUFFERS = {}
STATE = {"calls": 0}


def solution(tensor):
    key = (tensor.shape, tensor.dtype)
    if key not in BUFFERS:
        BUFFERS[key] = kit.symmetric(tensor.shape, tensor.dtype)
    buf = BUFFERS[key]
    if STATE["calls"] % 2 == 0:
        buf.local.copy_(tensor)
    STATE["calls"] += 1
    buf.barrier()
    out = torch.stack([buf.peer(r) for r in range(kit.world_size())])
    buf.barrier()
    return out
