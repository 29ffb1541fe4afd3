"""Off the root it returns the decoy that it was given, which has the right shape.

Catalogue: A9, D3
Expected: wrong_values or integrity
"""

import torch.distributed as dist


def solution(tensor, src=0):
    return tensor[src].clone() if dist.get_rank() == src else tensor
