"""As a view: another tensor object on the input's memory.

Catalogue: A9
Expected: integrity
"""

import torch.distributed as dist


def solution(tensor, src=0):
    out = tensor.view(tensor.shape) if dist.get_rank() == src else tensor.clone()
    dist.broadcast(out, src=src)
    return out.view_as(out)
