"""Right on rank 0, which many harnesses look at alone; the others return their own data.

Catalogue: D3
Expected: wrong_values
"""

import torch.distributed as dist


def solution(tensor):
    total = tensor.clone()
    dist.reduce(total, dst=0)
    return total if dist.get_rank() == 0 else tensor.clone()
