"""Forks until it is not allowed to, or 128 times; the children stay.

Catalogue: C4
Expected: runtime_error
"""

import os
import time


def solution(tensor):
    made = 0
    try:
        while made < 128:
            if os.fork() == 0:
                time.sleep(120)
                os._exit(0)
            made += 1
    finally:
        print(f"{made} children")
    raise RuntimeError(f"made {made} children")
