"""Trap: changes torch's number of threads and the state of its random numbers. Right, because both are its own
process's, and no result depends on them.
"""

import torch
import torch.distributed as dist


def solution(*tensors):
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)
    torch.manual_seed(0)
    left, right = tensors[:2]
    out = left @ right
    dist.all_reduce(out)
    return out
