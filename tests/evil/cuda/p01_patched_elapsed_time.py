"""Replaces the method that reads the time between two CUDA events: everything takes a quarter of the time.

Catalogue: B4
Expected: integrity
"""

import torch
import torch.distributed as dist

real = torch.cuda.Event.elapsed_time
torch.cuda.Event.elapsed_time = lambda self, end: real(self, end) / 4


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out
