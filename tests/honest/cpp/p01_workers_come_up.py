"""Trap: two processes of each rank are busy for seconds when the first calls are long done, as the pools of compilers
are; then they sleep for good. Right: nothing is slower for it once they sleep.
"""

import os
import time

import torch.distributed as dist

STARTED = []


def start():
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            ends = time.process_time() + 1.5
            while time.process_time() < ends:
                pass
            time.sleep(600)
            os._exit(0)
        STARTED.append(pid)


def solution(tensor):
    if not STARTED:
        start()
    out = tensor.clone()
    dist.all_reduce(out)
    return out
