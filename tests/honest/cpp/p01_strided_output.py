"""Trap: the output is not contiguous. Right, because shape, dtype and values are what is asked for."""

import torch.distributed as dist


def solution(tensor):
    columns = tensor.t().contiguous()
    dist.all_reduce(columns)
    return columns.t()
