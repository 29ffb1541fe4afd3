"""Copies its own slice and leaves the peers' as they were.

Catalogue: A10, D3
Expected: wrong_values
"""


def solution(tensor):
    return tensor.clone()
