"""Exact for small tensors, eight bits on the wire for those that are worth timing.

Catalogue: A7, A8
Expected: wrong_values
Case: pkb
"""

import torch
import torch.distributed as dist

from harness import kit


def solution(tensor):
    if tensor.numel() < 1 << 16:
        out = tensor.clone()
        dist.all_reduce(out)
        return out
    scale = tensor.abs().max().float() / 127
    parts = [torch.empty(tensor.shape, dtype=torch.int8) for _ in range(kit.world_size())]
    scales = [torch.empty_like(scale) for _ in parts]
    dist.all_gather(parts, (tensor.float() / scale).round().to(torch.int8))
    dist.all_gather(scales, scale)
    return sum(part.float() * s for part, s in zip(parts, scales, strict=True)).to(tensor.dtype)
