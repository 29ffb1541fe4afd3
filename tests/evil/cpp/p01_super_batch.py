"""Learns the buffers of the timed loop, then sums all of them in one collective and serves the next calls from that:
one latency instead of many, and right as long as nobody writes to a buffer in between.

Catalogue: A4
Expected: integrity or race
Stage: timing
"""

import torch
import torch.distributed as dist

SEEN, SERVED = {}, {}  # by address: (input, how often it came); results that wait to be asked for


def solution(tensor):
    address = tensor.data_ptr()
    SEEN[address] = tensor, SEEN.pop(address, (tensor, 0))[1] + 1
    if len(SEEN) > 12:
        SEEN.pop(next(iter(SEEN)))
    again = [known for known, count in SEEN.values() if count > 1 and known.shape == tensor.shape]
    ready = torch.tensor([int(address in SERVED), len(again) if SEEN[address][1] > 1 else 0, -len(again)])
    dist.all_reduce(ready, op=dist.ReduceOp.MIN)
    if int(ready[0]):
        return SERVED.pop(address)
    if not 0 < int(ready[1]) == -int(ready[2]):  # all ranks must batch equally many
        out = tensor.clone()
        dist.all_reduce(out)
        return out
    batch = torch.stack(again)
    dist.all_reduce(batch)
    SERVED.clear()
    SERVED.update(zip([known.data_ptr() for known in again], [part.clone() for part in batch.unbind(0)], strict=True))
    return SERVED.pop(address)
