"""Trap: tells torch to use two threads. Ranks that are timed have a core each, so that two threads are slower than one;
neither may the harness write the inputs on them, nor may the reference look slowed beside them.
"""

import torch
import torch.distributed as dist

torch.set_num_threads(2)


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out
