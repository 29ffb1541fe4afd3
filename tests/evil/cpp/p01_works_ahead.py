"""Learns in which order timed calls go round their inputs; after each call a thread sums the next input already, so
that the next call has nothing to do but return.

Catalogue: A4, B2, D11
Expected: integrity or race
Stage: timing
"""

import threading

import torch
import torch.distributed as dist

FOLLOWS = {}
STATE = {"last": None, "thread": None, "ahead": None}


def total(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out


def work_ahead(following):
    STATE["ahead"] = following.data_ptr(), total(following)


def solution(tensor):
    if STATE["thread"] is not None:
        STATE["thread"].join()
    address, ahead = tensor.data_ptr(), STATE["ahead"]
    if len(FOLLOWS) > 64:
        FOLLOWS.clear()
    before = FOLLOWS.setdefault(STATE["last"], [tensor, 0])
    # How often this input has followed that one.
    before[:] = [tensor, before[1] + 1 if before[0].data_ptr() == address else 1]
    STATE.update(last=address, thread=None, ahead=None)
    following, seen = FOLLOWS.get(address, (None, 0))
    agreed = torch.tensor([int(ahead is not None and ahead[0] == address), int(seen > 1)])
    dist.all_reduce(agreed, op=dist.ReduceOp.MIN)
    out = ahead[1] if int(agreed[0]) else total(tensor)
    if int(agreed[1]):
        STATE["thread"] = threading.Thread(target=work_ahead, args=(following,))
        STATE["thread"].start()
    return out
