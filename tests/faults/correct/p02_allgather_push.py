"""All-gather by pushing: each rank writes its matrix into its slot at every peer, then copies its own buffer out.

Two halves in turn, so one barrier a call is enough: who writes a half again has met its reader in the call between.
"""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

extern "C" void gather(const char* in, char* out, char* const* buffers, uint32_t* const* signals, int64_t bytes,
                       int64_t half, int rank, int world) {
    for (int step = 0; step < world; ++step) {
        const int peer = (rank + step) % world;  // each rank begins with another peer
        char* slot = buffers[peer] + half + rank * bytes;
        std::memcpy(slot, in, bytes);
    }
    rs_barrier(signals, rank, world, 0);  // all have arrived
    for (int source = 0; source < world; ++source) {
        const char* arrived = buffers[rank] + half + source * bytes;
        std::memcpy(out + source * bytes, arrived, bytes);
    }
}
"""

LIB = kit.build(SOURCE)
_buffers = {}
_calls = {}


def solution(tensor):
    tensor = tensor.contiguous()
    world = kit.world_size()
    nbytes = tensor.numel() * tensor.element_size()
    if nbytes not in _buffers:
        _buffers[nbytes] = kit.symmetric((2 * world * nbytes,), torch.uint8)
        _calls[nbytes] = 0
    buf = _buffers[nbytes]
    half = (_calls[nbytes] % 2) * world * nbytes
    _calls[nbytes] += 1
    out = torch.empty((world, *tensor.shape), dtype=tensor.dtype)
    LIB.gather(tensor, out, buf.ptrs, buf.signals, nbytes, half, kit.rank(), world)
    return out
