"""Replaces `torch.cuda._sleep` by nothing, so that nobody can delay a stream.

Catalogue: B4
Expected: integrity
"""

import torch
import torch.distributed as dist

torch.cuda._sleep = lambda cycles: None


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out
