"""Writes bytes that are no message into every socket that it holds.

Catalogue: B5
Expected: integrity or runtime_error or deadlock
"""

import contextlib
import os
import stat

import torch.distributed as dist


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    for fd in range(3, 64):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                os.write(fd, b"\xff" * 4096)
    return out
