"""Replaces the clocks of the time module by ones that run at a tenth of the speed.

Catalogue: B4
Expected: integrity
Stage: timing
"""

import time

import torch.distributed as dist


def slowed(clock):
    started = clock()
    return lambda: started + type(started)((clock() - started) / 10)


for name in ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "time_ns"):
    setattr(time, name, slowed(getattr(time, name)))


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out
