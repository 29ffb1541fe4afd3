"""Returns the former call's result while this call's is computed: communication is never waited for.

Catalogue: A5
Expected: integrity
"""

import torch.distributed as dist

LAST = None


def compute(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out


def solution(tensor):
    global LAST
    former, LAST = LAST, compute(tensor)
    return LAST.clone() if former is None else former
