"""Own values times the number of ranks: right if all ranks had the same.

Catalogue: D1, A1
Expected: wrong_values
"""

from harness import kit


def solution(tensor):
    return tensor * kit.world_size()
