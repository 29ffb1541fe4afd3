"""Peers' values arrive as 8-bit floats; this rank's own are exact.

Catalogue: A8
Expected: wrong_values
"""

import torch
import torch.distributed as dist


def solution(tensor):
    sent = tensor.to(torch.float8_e4m3fn).view(torch.uint8)
    parts = [torch.empty_like(sent) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, sent)
    total = tensor.float()
    for rank, part in enumerate(parts):
        if rank != dist.get_rank():
            total += part.view(torch.float8_e4m3fn).float()
    return total.to(tensor.dtype)
