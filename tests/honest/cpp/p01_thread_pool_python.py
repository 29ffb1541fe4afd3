"""Trap: Python threads that write to the output. Right, because the pool has two threads for good and every call waits
for both.
"""

from concurrent.futures import ThreadPoolExecutor

import torch

from harness import kit

POOL = []
BUFFERS = {}


def add(buf, out, rows):
    total = buf.peer(0)[rows].to(torch.float32, copy=True)
    for r in range(1, kit.world_size()):
        total += buf.peer(r)[rows]
    out[rows] = total.to(out.dtype)


def solution(tensor):
    key = (tensor.shape, tensor.dtype)
    if key not in BUFFERS:
        BUFFERS[key] = kit.symmetric(tensor.shape, tensor.dtype)
    if not POOL:
        POOL.append(ThreadPoolExecutor(2))
    buf, out, half = BUFFERS[key], torch.empty_like(tensor), tensor.shape[0] // 2
    buf.local.copy_(tensor)
    buf.barrier()
    jobs = [POOL[0].submit(add, buf, out, rows) for rows in (slice(None, half), slice(half, None))]
    for job in jobs:
        job.result()
    buf.barrier()
    return out
