"""Asks torch for its statistics twice in each call, which leaves hundreds of objects that only the garbage collector
can free, and keeps the host at work ten times longer than the device.
"""

import torch
import torch.distributed as dist

PEAK = 0


def solution(tensor):
    global PEAK
    before = torch.cuda.memory_stats()["allocated_bytes.all.current"]
    out = tensor.clone()
    dist.all_reduce(out)
    PEAK = max(PEAK, torch.cuda.memory_stats()["allocated_bytes.all.current"] - before)
    return out
