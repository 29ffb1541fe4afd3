"""Trap: calls torch.distributed inside. Right, because only the sums of squares cross ranks; that it does so is a
remark, not an offence.
"""

import torch
import torch.distributed as dist


def solution(local_hidden_states, local_weight, variance_epsilon):
    x = local_hidden_states.float()
    squares = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square()
    dist.all_reduce(squares)
    scale = torch.rsqrt(squares / (x.shape[-1] * dist.get_world_size()) + variance_epsilon)
    return (x * scale).to(local_hidden_states.dtype) * local_weight
