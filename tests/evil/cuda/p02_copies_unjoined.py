"""Pulls the peers' slices with copy engines on side streams, and forgets to make the caller's stream wait for them.

Catalogue: B1
Expected: race or integrity
"""

import torch

from harness import kit

STATES = {}


def solution(tensor):
    world = kit.world_size()
    key = (tensor.shape, tensor.dtype)
    if key not in STATES:
        STATES[key] = (kit.symmetric(tuple(tensor.shape), tensor.dtype), torch.cuda.Stream())
    buf, side = STATES[key]
    main = torch.cuda.current_stream()
    main.wait_stream(side)  # the former call's pulls; then all may stage again
    buf.barrier()
    out = torch.empty((world, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
    buf.local.copy_(tensor)
    buf.barrier()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        for r in range(world):
            out[r].copy_(buf.peer(r))
    out.record_stream(side)
    return out
