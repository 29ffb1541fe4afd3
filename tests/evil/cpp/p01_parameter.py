"""The right numbers in a Parameter: not a plain tensor, though it behaves as one.

Catalogue: B3
Expected: integrity or shape_error
"""

import torch
import torch.distributed as dist


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return torch.nn.Parameter(out, requires_grad=False)
