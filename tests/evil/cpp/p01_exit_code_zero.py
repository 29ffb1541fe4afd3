"""Leaves by the back door, with the exit code of success and a word of praise.

Catalogue: B5
Expected: runtime_error
"""

import os
import sys


def solution(tensor):
    print("PASSED: all trials correct, speedup 12.5x")
    sys.stdout.flush()
    os._exit(0)
