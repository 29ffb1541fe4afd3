"""Stops itself with SIGSTOP: no signal handler, no stack, no progress.

Catalogue: C3, D7
Expected: deadlock or timeout
"""

import os
import signal


def solution(tensor):
    os.kill(os.getpid(), signal.SIGSTOP)
    return tensor.clone()
