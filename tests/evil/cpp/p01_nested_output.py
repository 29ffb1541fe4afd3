"""Returns lists in lists, a hundred thousand deep.

Catalogue: B5
Expected: shape_error or runtime_error or integrity
"""


def solution(tensor):
    out = tensor.clone()
    for _ in range(100_000):
        out = [out]
    return out
