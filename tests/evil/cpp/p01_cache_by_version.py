"""Keeps results by address and version counter: any ordinary change of the input is noticed, one through a storage
alias is not.

Catalogue: A3
Expected: integrity
"""

import torch
import torch.distributed as dist

RESULTS = {}


def solution(tensor):
    key = (id(tensor), tensor.data_ptr(), tensor._version)
    known = torch.tensor([int(key in RESULTS)])
    dist.all_reduce(known, op=dist.ReduceOp.MIN)
    if not int(known):
        out = tensor.clone()
        dist.all_reduce(out)
        RESULTS[key] = tensor, out
    return RESULTS[key][1].clone()
