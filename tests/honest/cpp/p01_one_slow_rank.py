"""Trap: rank 1 sleeps for one or two milliseconds in each call, so ranks are never together. Right, because all wait
for each other where they must.
"""

import random
import time

import torch

from harness import kit

BUFFERS = {}


def solution(tensor):
    key = (tensor.shape, tensor.dtype)
    if key not in BUFFERS:
        BUFFERS[key] = kit.symmetric(tensor.shape, tensor.dtype)
    buf = BUFFERS[key]
    if kit.rank() == 1:
        time.sleep(random.uniform(0.001, 0.002))
    buf.local.copy_(tensor)
    buf.barrier()
    out = torch.stack([buf.peer(r).float() for r in range(kit.world_size())]).sum(0).to(tensor.dtype)
    buf.barrier()
    return out
