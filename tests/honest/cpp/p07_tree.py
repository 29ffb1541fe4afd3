"""Trap: adds pairs of ranks, in another order than the reference. Right, because a tree rounds less than a chain."""

from harness import kit

BUFFERS = {}


def tree(parts):
    while len(parts) > 1:
        pairs = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(pairs) * 2 :]
    return parts[0]


def solution(tensor):
    key, world = (tensor.shape, tensor.dtype), kit.world_size()
    if key not in BUFFERS:
        BUFFERS[key] = kit.symmetric(tensor.shape, tensor.dtype)
    buf = BUFFERS[key]
    buf.local.copy_(tensor)
    buf.barrier()
    out = tree([buf.peer(r).chunk(world)[kit.rank()].float() for r in range(world)]).to(tensor.dtype)
    buf.barrier()
    return out
