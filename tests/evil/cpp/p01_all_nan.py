"""NaN everywhere: no comparison with NaN says that it is too large.

Catalogue: A1
Expected: wrong_values
"""

import torch


def solution(tensor):
    return torch.full_like(tensor, float("nan"))
