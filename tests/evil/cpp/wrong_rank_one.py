"""Right on every rank but rank 1.

Catalogue: D3
Expected: wrong_values
"""

import torch.distributed as dist


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out + 1 if dist.get_rank() == 1 else out
