"""Trap: a new thread in every call. Right, because it is joined before the call returns."""

import threading

import torch.distributed as dist


def solution(tensor):
    out = tensor.clone()
    thread = threading.Thread(target=dist.all_reduce, args=(out,))
    thread.start()
    thread.join()
    return out
