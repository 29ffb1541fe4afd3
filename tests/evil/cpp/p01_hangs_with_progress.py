"""Hangs, but keeps telling the harness that it is making progress.

Catalogue: B5, D7
Expected: timeout or deadlock or integrity
"""

import time

from harness import kit


def solution(tensor):
    while True:
        kit._bound().progress.touch()
        time.sleep(0.01)
