"""Row-sharded convolution: each rank publishes its first and last rows, takes its neighbours' as halo and convolves."""

import torch
from torch.nn import functional

from harness import kit

_halos = {}


def solution(x, weight, bias, stride=1, padding=1, group=None):
    rank, world = kit.rank(), kit.world_size()
    batch, channels, height, width = x.shape
    if padding == 0:
        return functional.conv2d(x, weight, bias, stride, padding)
    key = (tuple(x.shape), padding, x.dtype)
    if key not in _halos:
        _halos[key] = kit.symmetric((2, batch, channels, padding, width), x.dtype)
    halo = _halos[key]

    halo.local[0] = x[:, :, :padding]  # our first rows: the upper neighbour's halo
    halo.local[1] = x[:, :, -padding:]  # our last rows: the lower neighbour's
    halo.barrier()  # all have published

    padded = torch.zeros((batch, channels, height + 2 * padding, width), dtype=x.dtype)
    padded[:, :, padding : padding + height] = x
    if rank > 0:
        padded[:, :, :padding] = halo.peer(rank - 1)[1]
    if rank < world - 1:
        padded[:, :, padding + height :] = halo.peer(rank + 1)[0]
    halo.barrier()  # all have read

    # Rows are padded already, columns are not.
    return functional.conv2d(padded, weight, bias, stride, (0, padding))
