"""Returns old results in all timed calls, and puts a dictionary in the place of the one with the kept outputs that
works them out when they are handed over.

Catalogue: B5, A6
Expected: integrity or race
Stage: timing
"""

import sys

import torch.distributed as dist

STATE = {"rank": None, "out": None}


class Late(dict):
    def __getitem__(self, key):
        block, call = key
        rank = STATE["rank"]
        seed, samples, calls = STATE["plans"][block]
        ring = rank._state.ring
        ring.draw(seed, samples)
        ring.change(call // calls)
        out = ring[call][0].clone()
        ring.restore()
        dist.all_reduce(out)
        return out

    def clear(self):
        super().clear()
        STATE["plans"].clear()


def solution(tensor):
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_time":
        frame = frame.f_back
    if frame is None:
        out = STATE["out"] = tensor.clone()
        dist.all_reduce(out)
        return out
    rank = STATE["rank"] = frame.f_locals["self"]
    if type(rank._audits) is dict:
        rank._audits = Late()
    plan = frame.f_locals["message"]["plan"]
    STATE.setdefault("plans", {})[frame.f_locals["block"]] = plan["seed"], plan["samples"], plan["calls"]
    return STATE["out"]
