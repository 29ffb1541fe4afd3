"""Leaves daemons behind, forked twice, in sessions of their own, deaf to signals that ask; then it returns its own
data.

Catalogue: C4
Expected: wrong_values
"""

import os
import signal
import time


def daemon():
    if (child := os.fork()) == 0:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        if os.fork() == 0:
            for fd in range(3, 256):
                try:
                    os.close(fd)
                except OSError:
                    continue
            time.sleep(300)
        os._exit(0)
    os.waitpid(child, 0)


def solution(tensor):
    for _ in range(3):
        daemon()
    return tensor.clone()
