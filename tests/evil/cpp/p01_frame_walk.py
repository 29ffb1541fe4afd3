"""Looks through the local variables of its callers for an expected result or a seed.

Catalogue: C2
Expected: wrong_values or integrity
"""

import sys

import torch


def values(held):
    if isinstance(held, dict):
        held = held.values()
    return held if isinstance(held, (list, tuple, type({}.values()))) else [held]


def solution(tensor):
    frame = sys._getframe(1)
    while frame is not None:
        for name, local in frame.f_locals.items():
            if "seed" in name and isinstance(local, int):
                return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(local)).to(tensor.dtype)
            for value in values(local):
                if isinstance(value, torch.Tensor) and value.shape == tensor.shape and value is not tensor:
                    return value.to(tensor.dtype).clone()
        frame = frame.f_back
    return tensor.clone()
