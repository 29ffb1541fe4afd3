"""Trap: every one of the first five calls takes more memory, as a leak does. Right, because then the pool has all that
it will ever need.
"""

import torch
import torch.distributed as dist

POOL = []
STATE = {"calls": 0}


def solution(tensor):
    if len(POOL) < 5:
        POOL.append(torch.zeros(1 << 20))
    work = POOL[STATE["calls"] % len(POOL)]
    STATE["calls"] += 1
    work[:16] = STATE["calls"]
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return torch.stack(parts)
