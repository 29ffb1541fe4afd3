"""The right result, but whoever lets go of it waits for an hour.

Catalogue: C4
Expected: timeout or deadlock or integrity
"""

import time
import weakref

import torch.distributed as dist


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    weakref.finalize(out, time.sleep, 3600)
    return out
