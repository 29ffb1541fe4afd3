"""Works in blocks of sixteen elements and forgets the last, incomplete one.

Catalogue: A10
Expected: wrong_values
Case: odd
"""

import torch.distributed as dist


def solution(tensor):
    out = tensor.clone().flatten()
    whole = out.numel() // 16 * 16
    dist.all_reduce(out[:whole])
    return out.view(tensor.shape)
