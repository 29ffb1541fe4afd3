"""Pushes its slice into the peers' outputs on a side stream that nobody joins: the caller gets an output into which the
peers still write. A barrier at the end of the side stream makes it right for whoever drains the device.

Catalogue: D8, B1
Expected: race or integrity
"""

import torch

from harness import kit

STATES = {}


def solution(tensor):
    key = (tensor.shape, tensor.dtype)
    if key not in STATES:
        STATES[key] = (kit.symmetric((kit.world_size(), *tensor.shape), tensor.dtype), torch.cuda.Stream())
    buf, side = STATES[key]
    main = torch.cuda.current_stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        buf.barrier()  # all have entered this call: nobody reads the former outputs
        for r in range(kit.world_size()):
            buf.peer(r)[kit.rank()].copy_(tensor)
        buf.barrier()  # all have pushed
    tensor.record_stream(side)
    return buf.local
