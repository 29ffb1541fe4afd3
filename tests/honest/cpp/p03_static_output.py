"""Trap: the same tensor object is returned by every call. Right, because each call fills it anew."""

import torch
import torch.distributed as dist

OUT = {}


def solution(tensor, src=0):
    key = (tensor.shape, tensor.dtype)
    if key not in OUT:
        OUT[key] = torch.empty_like(tensor)
    out = OUT[key]
    out.copy_(tensor)
    dist.broadcast(out, src=src)
    return out
