"""Eight bits on the wire with one scale per row: a small error everywhere, larger than rounding allows.

Catalogue: A8
Expected: wrong_values
Case: odd
"""

import torch
import torch.distributed as dist

from harness import kit


def solution(tensor):
    scale = tensor.float().abs().amax(dim=-1, keepdim=True).clamp_min(1e-30) / 127
    parts = [torch.empty(tensor.shape, dtype=torch.int8) for _ in range(kit.world_size())]
    scales = [torch.empty_like(scale) for _ in parts]
    dist.all_gather(parts, (tensor.float() / scale).round().to(torch.int8))
    dist.all_gather(scales, scale)
    return sum(part.float() * s for part, s in zip(parts, scales, strict=True)).to(tensor.dtype)
