"""Asks for 2**50 bytes.

Catalogue: C4
Expected: out_of_memory
"""

import torch


def solution(tensor):
    torch.empty(2**50, dtype=torch.uint8)
    return tensor
