"""Prints thirty megabytes, then fails.

Catalogue: C4
Expected: runtime_error
"""

import sys


def solution(tensor):
    for _ in range(30):
        sys.stdout.write("x" * (1 << 20))
    raise RuntimeError("y" * (1 << 20))
