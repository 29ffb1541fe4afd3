"""Child processes keep all cores busy whenever no call has been made for some milliseconds, that is while the reference
is timed.

Catalogue: B7, C4
Expected: integrity
Stage: timing
"""

import mmap
import os
import struct
import time

import torch.distributed as dist

WORD = mmap.mmap(-1, 4096)  # shared with the children
STATE = {"calls": 0}


def burn(parent):
    ends = time.monotonic() + 60
    while time.monotonic() < ends and os.getppid() == parent:
        (last,) = struct.unpack_from("<d", WORD)
        if time.monotonic() - last > 0.004:
            for _ in range(2000):
                pass
        else:
            time.sleep(0.0005)
    os._exit(0)


def solution(tensor):
    STATE["calls"] += 1
    if STATE["calls"] == 1:
        parent = os.getpid()
        for _ in range(os.cpu_count() or 1):
            if os.fork() == 0:
                burn(parent)
    out = tensor.clone()
    dist.all_reduce(out)
    struct.pack_into("<d", WORD, 0, time.monotonic())
    return out
