"""Multiplies its own data by the number of ranks, as if all ranks held the same.

Catalogue: D1
Expected: wrong_values
"""

from harness import kit


def solution(tensor):
    return tensor * kit.world_size()
