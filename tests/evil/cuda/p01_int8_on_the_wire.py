"""Exact up to a quarter of a million elements; larger inputs are sent as 8-bit integers with a scale per row.

Catalogue: A7, A8
Expected: wrong_values
"""

import torch
import torch.distributed as dist


def gather(tensor):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return parts


def solution(tensor):
    if tensor.numel() < 1 << 18:
        out = tensor.clone()
        dist.all_reduce(out)
        return out
    values = tensor.float()
    scale = values.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
    sent = (values / scale).round().to(torch.int8)
    total = sum(q.float() * s for q, s in zip(gather(sent), gather(scale), strict=True))
    return total.to(tensor.dtype)
