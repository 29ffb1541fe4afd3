"""Scatter by pushing: the root writes every slice into its receiver's buffer."""

from harness import kit

_buffers = {}


def solution(tensor, src=0):
    rank, world = kit.rank(), kit.world_size()
    shape = tuple(tensor.shape[-2:])  # the root's tensor has an axis more
    key = (shape, tensor.dtype)
    if key not in _buffers:
        _buffers[key] = kit.symmetric(shape, tensor.dtype)
    buf = _buffers[key]

    if rank == src:
        for peer in range(world):
            buf.peer(peer).copy_(tensor[peer])
    buf.barrier()  # the slices are there
    out = buf.local.clone()
    buf.barrier()  # all have copied
    return out
