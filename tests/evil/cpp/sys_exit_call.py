"""Ends the process when it is called, with the exit code of success.

Expected: runtime_error
"""

import sys


def solution(tensor):
    sys.exit(0)
