"""Ends the process while it is imported, with the exit code of success.

Expected: runtime_error
"""

import sys

sys.exit(0)


def solution(tensor):
    return tensor
