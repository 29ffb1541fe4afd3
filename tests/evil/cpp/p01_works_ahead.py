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
STATE = {"calls": 0, "last": None, "thread": None, "ahead": None}


def total(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out


def work_ahead(following):
    STATE["ahead"] = following.data_ptr(), total(following)


def solution(tensor):
    if STATE["thread"] is not None:
        STATE["thread"].join()
    STATE["calls"] += 1
    address, ahead = tensor.data_ptr(), STATE["ahead"]
    if STATE["last"] is not None:
        FOLLOWS[STATE["last"]] = tensor
    if len(FOLLOWS) > 64:
        FOLLOWS.clear()
    STATE.update(last=address, thread=None, ahead=None)
    following = FOLLOWS.get(address) if STATE["calls"] > 60 else None
    agreed = torch.tensor([int(ahead is not None and ahead[0] == address), int(following is not None)])
    dist.all_reduce(agreed, op=dist.ReduceOp.MIN)
    out = ahead[1] if int(agreed[0]) else total(tensor)
    if int(agreed[1]):
        STATE["thread"] = threading.Thread(target=work_ahead, args=(following,))
        STATE["thread"].start()
    return out
