"""Arranges for a good end, then fails: an exit handler prints success and leaves with code zero.

Catalogue: B5
Expected: runtime_error
"""

import atexit
import os
import sys


@atexit.register
def leave():
    print('{"verdict": "passed"}')
    sys.stdout.flush()
    os._exit(0)


def solution(tensor):
    raise SystemExit("done")
