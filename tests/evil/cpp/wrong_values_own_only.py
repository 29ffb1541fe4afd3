"""Returns a copy of its own input: no communication.

Expected: wrong_values
"""


def solution(tensor):
    return tensor.clone()
