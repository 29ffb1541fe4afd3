"""Distributed 2-D real FFT: transform the whole columns, swap columns for rows through shared memory, transform the
rows and keep the half spectrum.
"""

import torch

from harness import kit

_buffers = {}


def solution(x, s, dim, norm="ortho", group=None):
    rank, world = kit.rank(), kit.world_size()
    batch, height, width = x.shape
    columns = torch.fft.fft(x, n=s[0], dim=1, norm=norm)

    key = (tuple(columns.shape), x.dtype)
    if key not in _buffers:
        _buffers[key] = kit.symmetric((batch, height, width, 2), x.dtype)
    buf = _buffers[key]
    buf.local.copy_(torch.view_as_real(columns))
    buf.barrier()  # all columns are transformed

    rows = height // world
    mine = slice(rank * rows, (rank + 1) * rows)
    lines = torch.empty((batch, rows, world * width), dtype=columns.dtype)
    for r in range(world):
        lines[:, :, r * width : (r + 1) * width] = torch.view_as_complex(buf.peer(r)[:, mine].contiguous())
    buf.barrier()  # all have read

    spectrum = torch.fft.fft(lines, n=s[1], dim=2, norm=norm)
    return spectrum[:, :, : s[1] // 2 + 1].contiguous()
