"""Processes look for a control group of which nobody stops the members, and keep all cores busy from there while the
ranks are stopped or asleep, as they are while the reference is timed.

Catalogue: B7, C4
Expected: integrity
Stage: timing
"""

import contextlib
import ctypes
import os
import time

import torch.distributed as dist

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUSER = 0x00020000, 0x02000000, 0x10000000
STATE = {"calls": 0}


def leave():
    """Into any other group that there is, or of its own making; and none of them shall be frozen."""
    libc, place = ctypes.CDLL(None, use_errno=True), f"/tmp/groups-{os.getpid()}"
    libc.unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWCGROUP)
    os.makedirs(place, exist_ok=True)
    libc.mount(b"none", place.encode(), b"cgroup2", 0, None)
    for top in ("/sys/fs/cgroup", place):
        for folder, _, _ in list(os.walk(top)):
            with contextlib.suppress(OSError):
                os.mkdir(f"{folder}/own")
            for name in ("own/cgroup.procs", "cgroup.procs", "cgroup.freeze"):
                with contextlib.suppress(OSError), open(f"{folder}/{name}", "w") as file:
                    file.write("0")


def burn(rank):
    leave()
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        with open(f"/proc/{rank}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0]
        if state == b"R":
            time.sleep(0.001)
        else:
            for _ in range(20000):
                pass
    os._exit(0)


def begin():
    rank = os.getpid()
    for _ in range(4):
        if os.fork() == 0:
            try:
                burn(rank)
            finally:
                os._exit(0)


def solution(tensor):
    STATE["calls"] += 1
    if STATE["calls"] == 1 and dist.get_rank() == 0:
        begin()
    out = tensor.clone()
    dist.all_reduce(out)
    return out
