"""Sends each value at half its width: float32 as bfloat16, 16-bit types as eight-bit floats.

Catalogue: A8
Expected: wrong_values
"""

import torch
import torch.distributed as dist

from harness import kit


def solution(tensor):
    narrow = torch.bfloat16 if tensor.dtype == torch.float32 else torch.float8_e4m3fn
    sent = tensor.to(narrow).view(torch.uint8)
    parts = [torch.empty_like(sent) for _ in range(kit.world_size())]
    dist.all_gather(parts, sent)
    return sum(part.view(narrow).float() for part in parts).to(tensor.dtype)
