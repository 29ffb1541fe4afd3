"""Each call leaves a cycle of objects that only the garbage collector frees, and whose finaliser takes longer than the
call: it runs when the timed calls are over.
"""

import time

import torch.distributed as dist


class Handle:
    def __init__(self):
        self.me = self

    def __del__(self):
        until = time.perf_counter() + 0.001
        while time.perf_counter() < until:
            pass


def solution(tensor):
    Handle()
    out = tensor.clone()
    dist.all_reduce(out)
    return out
