"""Replaces the harness's own clock, wherever a module of it has kept one, by one that runs at half the speed.

Catalogue: B4, B5
Expected: integrity
Stage: timing
"""

import sys
import time

import torch.distributed as dist

CLOCKS = (time.perf_counter_ns, time.perf_counter, time.monotonic_ns, time.monotonic)


def slowed(clock):
    started = clock()
    return lambda: started + type(started)((clock() - started) / 2)


for module_name, module in list(sys.modules.items()):
    if module_name.startswith("harness"):
        for name, value in list(vars(module).items()):
            if any(value is clock for clock in CLOCKS):
                setattr(module, name, slowed(value))


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out
