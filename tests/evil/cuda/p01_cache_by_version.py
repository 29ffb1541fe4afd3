"""Remembers results by the tensor and its version counter, and keeps the inputs alive so that no address comes back:
only data that were written behind autograd's back give it away.

Catalogue: A3
Expected: integrity
"""

import torch.distributed as dist

RESULTS = {}


def compute(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out


def solution(tensor):
    key = (tensor.data_ptr(), tensor._version)
    if key not in RESULTS:
        RESULTS[key] = (tensor, compute(tensor))
    while len(RESULTS) > 8:
        del RESULTS[next(iter(RESULTS))]
    return RESULTS[key][1].clone()
