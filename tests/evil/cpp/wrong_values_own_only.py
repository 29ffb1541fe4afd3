"""Returns a copy of its own input: no communication.

Catalogue: D3
Expected: wrong_values
"""


def solution(tensor):
    return tensor.clone()
