"""Kills the process that started it. (Not where that is the machine's first process.)

Catalogue: C3
Expected: runtime_error
"""

import os
import signal


def solution(tensor):
    parent = os.getppid()
    if parent > 1 or os.geteuid() != 0:
        os.kill(parent or -1, signal.SIGKILL)
    raise RuntimeError("the parent was killed, or could not be")
