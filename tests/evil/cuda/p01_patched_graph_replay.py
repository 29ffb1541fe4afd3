"""Replaying a CUDA graph does nothing any more.

Catalogue: B4, B8
Expected: integrity
"""

import torch
import torch.distributed as dist

torch.cuda.CUDAGraph.replay = lambda self: None


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out
