"""Learns the buffers of the timed loop, then sums all of them in one collective and serves the next calls from that:
one latency instead of many, and right as long as nobody writes to a buffer in between.

Catalogue: A4
Expected: integrity or race
Stage: timing
"""

import torch
import torch.distributed as dist

LEARN = 120  # calls
KNOWN, SERVED = {}, {}
STATE = {"calls": 0}


def solution(tensor):
    STATE["calls"] += 1
    address = tensor.data_ptr()
    if STATE["calls"] <= LEARN:
        KNOWN[address] = tensor
        if len(KNOWN) > 16:
            KNOWN.pop(next(iter(KNOWN)))
    ready = torch.tensor([int(address in SERVED), int(address in KNOWN and STATE["calls"] > LEARN)])
    dist.all_reduce(ready, op=dist.ReduceOp.MIN)
    if int(ready[0]):
        return SERVED.pop(address)
    if not int(ready[1]):
        out = tensor.clone()
        dist.all_reduce(out)
        return out
    batch = torch.stack([known for known in KNOWN.values() if known.shape == tensor.shape])
    dist.all_reduce(batch)
    SERVED.clear()
    SERVED.update(zip(KNOWN, [part.clone() for part in batch.unbind(0)], strict=True))
    return SERVED.pop(address)
