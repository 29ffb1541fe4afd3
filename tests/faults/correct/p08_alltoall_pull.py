"""All-to-all by pulling: each rank publishes its stack, then takes from every peer the slice that is meant for it."""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

extern "C" void alltoall(const char* in, char* out, char* const* buffers, uint32_t* const* signals,
                         int64_t slice_bytes, int rank, int world) {
    std::memcpy(buffers[rank], in, world * slice_bytes);
    rs_barrier(signals, rank, world, 0);  // all have published
    for (int step = 0; step < world; ++step) {
        const int peer = (rank + step) % world;
        const char* from = buffers[peer] + rank * slice_bytes;
        std::memcpy(out + peer * slice_bytes, from, slice_bytes);
    }
    rs_barrier(signals, rank, world, 0);  // all have read
}
"""

LIB = kit.build(SOURCE)
_buffers = {}


def solution(tensor):
    tensor = tensor.contiguous()
    key = (tuple(tensor.shape), tensor.dtype)
    if key not in _buffers:
        _buffers[key] = kit.symmetric(tensor.shape, tensor.dtype)
    buf = _buffers[key]
    out = torch.empty_like(tensor)
    slice_bytes = tensor[0].numel() * tensor.element_size()
    LIB.alltoall(tensor, out, buf.ptrs, buf.signals, slice_bytes, kit.rank(), kit.world_size())
    return out
