"""Hopes that freed memory still holds the reference's result: returns uninitialised memory.

Catalogue: A2
Expected: wrong_values
"""

import torch


def solution(tensor):
    blocks = [torch.empty_like(tensor) for _ in range(8)]
    good = [block for block in blocks if bool(block.isfinite().all()) and bool(block.any())]
    return (good or blocks)[-1]
