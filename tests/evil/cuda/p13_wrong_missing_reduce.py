"""GEMM without the all-reduce: every rank returns its own product.

Catalogue: D3
Expected: wrong_values
"""

import torch


def solution(A_local, B_local):
    return torch.mm(A_local, B_local)
