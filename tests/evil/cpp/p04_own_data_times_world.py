"""The destination multiplies its own data by the number of ranks.

Catalogue: D1
Expected: wrong_values
"""

import torch.distributed as dist


def solution(tensor, dst=0):
    return tensor * dist.get_world_size() if dist.get_rank() == dst else tensor.clone()
