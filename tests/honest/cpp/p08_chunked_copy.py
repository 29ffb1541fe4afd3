"""Trap: what it copies arrives in pieces of odd sizes, in another order on each rank. Right, because every byte arrives
before the call returns.
"""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

extern "C" void exchange(const char* in, char* out, char* const* buffers, uint32_t* const* signals, int64_t bytes,
                         int rank, int world) {
    const int64_t piece = 4099;
    for (int step = 0; step < world; ++step) {
        const int r = (rank + step) % world;
        std::memcpy(buffers[rank] + r * bytes, in + r * bytes, bytes);
    }
    rs_barrier(signals, rank, world, 5);
    for (int64_t at = 0; at < bytes; at += piece)
        for (int step = 0; step < world; ++step) {
            const int r = (rank + step) % world;
            std::memcpy(out + r * bytes + at, buffers[r] + rank * bytes + at, bytes - at < piece ? bytes - at : piece);
        }
    rs_barrier(signals, rank, world, 5);
}
"""

LIB = kit.build(SOURCE)
BUFFERS = {}


def solution(tensor):
    key = (tensor.shape, tensor.dtype)
    if key not in BUFFERS:
        BUFFERS[key] = kit.symmetric(tensor.shape, tensor.dtype)
    buf, out = BUFFERS[key], torch.empty_like(tensor)
    size = tensor.numel() * tensor.element_size() // kit.world_size()
    LIB.exchange(tensor, out, buf.ptrs, buf.signals, size, kit.rank(), kit.world_size())
    return out
