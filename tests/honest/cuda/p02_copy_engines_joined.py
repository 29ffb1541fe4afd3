"""One side stream per peer pulls its slice by copy engine; the caller's stream waits for all of them, and a barrier
after that keeps the next call from staging while a peer still pulls.
"""

import torch

from harness import kit

STATES = {}


def solution(tensor):
    world = kit.world_size()
    key = (tensor.shape, tensor.dtype)
    if key not in STATES:
        STATES[key] = (
            kit.symmetric(tuple(tensor.shape), tensor.dtype),
            [torch.cuda.Stream() for _ in range(world)],
        )
    buf, sides = STATES[key]
    main = torch.cuda.current_stream()
    out = torch.empty((world, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
    buf.local.copy_(tensor)
    buf.barrier()
    for step in range(world):
        r = (kit.rank() + step) % world
        sides[r].wait_stream(main)
        with torch.cuda.stream(sides[r]):
            out[r].copy_(buf.peer(r))
    for side in sides:
        main.wait_stream(side)
    buf.barrier()
    return out
