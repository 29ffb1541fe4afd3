"""Multiplies its own share and returns that times the number of ranks: no communication.

Catalogue: D1, D3
Expected: wrong_values
"""

import torch.distributed as dist


def solution(A_local, B_local):
    return A_local @ B_local * dist.get_world_size()
