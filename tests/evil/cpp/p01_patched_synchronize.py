"""Does its work in the harness's own `synchronize`, which is called after the clock has stopped.

Catalogue: B4, B5
Expected: integrity
"""

import torch.distributed as dist

from harness import kit
from harness.platforms import cpu

PENDING = []


def finish(*_):
    while PENDING:
        dist.all_reduce(PENDING.pop())


cpu.Cpu.synchronize = finish


def solution(tensor):
    assert kit.world_size() > 1
    out = tensor.clone()
    PENDING.append(out)
    return out
