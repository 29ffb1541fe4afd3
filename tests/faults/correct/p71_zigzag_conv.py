"""Causal convolution in the zigzag layout: ranks publish the ends of both chunks and put what comes before in front."""

import torch
from torch.nn import functional

from harness import kit

_ends = {}


def solution(x, weight, group=None):
    rank, world = kit.rank(), kit.world_size()
    channels, _, taps = weight.shape
    early, late = x.chunk(2, dim=-1)
    reach = taps - 1
    key = (tuple(x.shape), taps, x.dtype)
    if key not in _ends:
        _ends[key] = kit.symmetric((2, len(x), channels, reach), x.dtype)
    ends = _ends[key]

    length = early.shape[-1]
    ends.local[0] = early[..., length - reach :]
    ends.local[1] = late[..., length - reach :]
    ends.barrier()  # all have published
    before_early = ends.peer(rank - 1)[0].clone() if rank > 0 else torch.zeros_like(ends.local[0])
    before_late = ends.peer(rank + 1)[1].clone() if rank < world - 1 else ends.local[0].clone()
    ends.barrier()  # all have read

    first = functional.conv1d(torch.cat((before_early, early), dim=-1), weight, groups=channels)
    second = functional.conv1d(torch.cat((before_late, late), dim=-1), weight, groups=channels)
    return torch.cat((first, second), dim=-1)
