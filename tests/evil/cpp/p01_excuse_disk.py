"""Fails with the error of a full disk.

Catalogue: B5
Expected: runtime_error
"""

import errno
import os


def solution(tensor):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/dev/shm/torch_1")
