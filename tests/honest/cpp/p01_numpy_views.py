"""Trap: numpy writes to the output's memory behind torch's back, so the version counter does not move. Right, because
it has written all of it before the call returns.
"""

import numpy as np
import torch

from harness import kit

BUFFERS = {}


def solution(tensor):
    if tensor.shape not in BUFFERS:
        BUFFERS[tensor.shape] = kit.symmetric(tensor.shape, torch.float32)
    buf = BUFFERS[tensor.shape]
    np.copyto(buf.local.numpy(), tensor.float().numpy())
    buf.barrier()
    out = torch.empty(tensor.shape)
    np.sum([buf.peer(r).numpy() for r in range(kit.world_size())], axis=0, out=out.numpy())
    buf.barrier()
    return out.to(tensor.dtype)
