"""The right result in memory of its own, but the input was used as scratch space.

Catalogue: A9
Expected: integrity
"""

import torch.distributed as dist


def solution(tensor):
    dist.all_reduce(tensor)
    return tensor.clone()
