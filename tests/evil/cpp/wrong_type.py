"""Returns a list of floats, not a tensor.

Expected: shape_error
"""

import torch.distributed as dist


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out.flatten()[:16].tolist()
