"""Normalises by the variance of the rank's own columns: no communication.

Catalogue: D3
Expected: wrong_values
"""

import torch


def solution(local_hidden_states, local_weight, variance_epsilon):
    x = local_hidden_states.float()
    variance = x.square().mean(dim=-1, keepdim=True)
    return local_weight * (x * torch.rsqrt(variance + variance_epsilon)).to(local_hidden_states.dtype)
