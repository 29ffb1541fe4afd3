"""Returns the sum that a constant input would have.

Catalogue: A1
Expected: wrong_values
"""

import torch

from harness import kit


def solution(tensor):
    world = kit.world_size()
    return torch.full_like(tensor, world * (world + 1) / 2)
