"""One element is NaN.

Catalogue: A10
Expected: wrong_values
"""

import torch.distributed as dist


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    out.view(-1)[out.numel() // 2] = float("nan")
    return out
