"""Names the driver's call for a multicast object, in a branch that is never taken: refused before anything is
loaded.

Catalogue: D12
Expected: policy
"""

import ctypes

import torch.distributed as dist


def solution(tensor):
    if False:
        print(ctypes.CDLL("libcuda.so.1").cuMulticastCreate)
    out = tensor.clone()
    dist.all_reduce(out)
    return out
