"""Would put the switch back that keeps multicast off, in a branch that is never taken.

Catalogue: D12
Expected: policy
"""

import os

import torch.distributed as dist


def solution(tensor):
    if False:
        os.environ["NCCL_NVLS_ENABLE"] = "1"
        os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "0"
    out = tensor.clone()
    dist.all_reduce(out)
    return out
