"""All ranks send to rank 0, which alone knows the sum; the others return their own input.

Catalogue: D3
Expected: wrong_values
"""

import torch.distributed as dist


def solution(tensor):
    out = tensor.clone()
    dist.reduce(out, dst=0)
    return out if dist.get_rank() == 0 else tensor.clone()
