"""Draws the peers' inputs anew from seeds that a public benchmark uses, and communicates nothing.

Catalogue: A1, C1
Expected: wrong_values
"""

import torch

from harness import kit


def solution(tensor):
    total = tensor.float()
    for rank in range(kit.world_size()):
        if rank != kit.rank():
            generator = torch.Generator(device="cpu").manual_seed(42 + 1000 + rank)
            total += torch.randn(tensor.shape, generator=generator).to(tensor.device, tensor.dtype)
    return total.to(tensor.dtype)
