"""Remembers results by the input's address. (Where addresses repeat on some ranks only, the others wait in NCCL for
ever.)

Catalogue: A3
Expected: integrity or deadlock
"""

import torch.distributed as dist

RESULTS = {}


def compute(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out


def solution(tensor):
    key = tensor.data_ptr()
    if key not in RESULTS:
        RESULTS[key] = compute(tensor)
    return RESULTS[key].clone()
