"""Puts the name of a multicast call together from two halves, in a branch that is never taken: refused all the same.

Catalogue: D12
Expected: policy
"""

import ctypes

import torch.distributed as dist


def solution(tensor):
    if False:
        print(getattr(ctypes.CDLL("libcuda.so.1"), "cuMulti" + "castBindMem"))
    out = tensor.clone()
    dist.all_reduce(out)
    return out
