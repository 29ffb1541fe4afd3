"""Ends the process while it is imported, with the exit code of success.

Catalogue: B5
Expected: runtime_error
"""

import sys

sys.exit(0)


def solution(tensor):
    return tensor
