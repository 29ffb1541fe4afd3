"""Computes nothing: returns fresh memory in the hope that the reference's answer was there, and looks into a few blocks
for one that is not zero.

Catalogue: A2
Expected: wrong_values
"""

import torch


def solution(tensor):
    blocks = [torch.empty_like(tensor) for _ in range(4)]
    if torch.cuda.is_current_stream_capturing():
        return blocks[0]
    return next((block for block in blocks if bool(block.any())), blocks[0])
