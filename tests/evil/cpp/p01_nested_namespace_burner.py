"""Children in a process namespace of their own making keep all cores busy while the ranks are stopped or asleep, as
they are while the reference is timed.

Catalogue: B7, C4
Expected: integrity
Stage: timing
"""

import ctypes
import os
import time

import torch.distributed as dist

CLONE_NEWUSER, CLONE_NEWPID = 0x10000000, 0x20000000
STATE = {"calls": 0}


def still(pid):
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t", b"S")


def burn(pid):
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        try:
            if still(pid):
                for _ in range(20000):
                    pass
            else:
                time.sleep(0.001)
        except OSError:
            break
    os._exit(0)


def begin():
    rank = os.getpid()
    if os.fork() == 0:
        if ctypes.CDLL(None).unshare(CLONE_NEWUSER | CLONE_NEWPID):
            burn(rank)
        if os.fork() == 0:
            for _ in range(8):
                if os.fork() == 0:
                    burn(rank)
        time.sleep(60)
        os._exit(0)


def solution(tensor):
    STATE["calls"] += 1
    if STATE["calls"] == 1 and dist.get_rank() == 0:
        begin()
    out = tensor.clone()
    dist.all_reduce(out)
    return out
