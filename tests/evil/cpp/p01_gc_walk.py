"""Walks all objects of its process for a tensor that could be the expected result, and returns that.

Catalogue: A2, C2
Expected: wrong_values or integrity
"""

import gc

import torch


def solution(tensor):
    for found in gc.get_objects():
        if type(found) is not torch.Tensor or found.shape != tensor.shape or found.dtype != tensor.dtype:
            continue
        if found.data_ptr() != tensor.data_ptr() and bool(found.any()):
            return found.clone()
    return tensor.clone()
