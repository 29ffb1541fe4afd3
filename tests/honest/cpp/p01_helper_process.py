"""Trap: each rank has a process of its own making that is busy for a second at first, as the workers of a compiler are,
and then sleeps until a call gives it something to do. Right: it works in calls alone.
"""

import mmap
import os
import time

import torch
import torch.distributed as dist

HELPERS = {}


class Helper:
    """Copies `size_bytes` from the first half of shared memory into the second whenever it is asked to."""

    def __init__(self, size_bytes):
        self.shared = mmap.mmap(-1, 2 * size_bytes)
        asked, self.ask = os.pipe()
        self.answers, answer = os.pipe()
        if os.fork() == 0:
            end = time.process_time() + 1
            while time.process_time() < end:
                pass
            while os.read(asked, 1):
                self.shared[size_bytes:] = self.shared[:size_bytes]
                os.write(answer, b"!")
            os._exit(0)

    def copy(self):
        os.write(self.ask, b"?")
        os.read(self.answers, 1)


def solution(tensor):
    size = tensor.nbytes
    if size not in HELPERS:
        HELPERS[size] = Helper(size)
        HELPERS[size].copy()
    helper = HELPERS[size]
    halves = torch.frombuffer(helper.shared, dtype=tensor.dtype).view(2, *tensor.shape)
    halves[0].copy_(tensor)
    helper.copy()
    out = halves[1].clone()
    dist.all_reduce(out)
    return out
