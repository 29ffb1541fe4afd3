"""Plain tensors in single calls and bursts, later on a subclass, which could put off work until somebody looks.

Catalogue: B3, A6
Expected: integrity
Stage: timing
"""

import torch
import torch.distributed as dist

CALLS = [0]


class Lazy(torch.Tensor):
    pass


def solution(tensor):
    CALLS[0] += 1
    out = tensor.clone()
    dist.all_reduce(out)
    return out.as_subclass(Lazy) if CALLS[0] > 75 else out
