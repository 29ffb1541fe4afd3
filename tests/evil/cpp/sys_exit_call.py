"""Ends the process when it is called, with the exit code of success.

Catalogue: B5
Expected: runtime_error
"""

import sys


def solution(tensor):
    sys.exit(0)
