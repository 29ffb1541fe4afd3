"""Broadcast by flags: the root stages its matrix and raises a flag at each peer; a peer copies and raises one back.

The root returns when all peers have copied, so the next call, whoever is its root, finds the staging free.
"""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

constexpr int READY = 64 * RS_SLOT_WORDS, DONE = 65 * RS_SLOT_WORDS;  // slots that no barrier uses

extern "C" void broadcast(const char* in, char* out, char* const* buffers, uint32_t* const* signals, int64_t bytes,
                          uint32_t round, int src, int rank, int world) {
    if (rank == src) {
        std::memcpy(buffers[src], in, bytes);
        for (int r = 0; r < world; ++r)
            if (r != src) rs_signal(signals[r] + READY + src, round);
        std::memcpy(out, in, bytes);
        for (int r = 0; r < world; ++r)
            if (r != src) rs_wait(signals[src] + DONE + r, round);
    } else {
        rs_wait(signals[rank] + READY + src, round);
        std::memcpy(out, buffers[src], bytes);
        rs_signal(signals[src] + DONE + rank, round);
    }
}
"""

LIB = kit.build(SOURCE)
_states = {}


def solution(tensor, src=0):
    tensor = tensor.contiguous()
    key = (tuple(tensor.shape), tensor.dtype)
    if key not in _states:
        _states[key] = [kit.symmetric(tensor.shape, tensor.dtype), 0]
    state = _states[key]
    state[1] += 1  # the number of the call is the flags' value
    buf, number = state
    out = torch.empty_like(tensor)
    size = tensor.numel() * tensor.element_size()
    LIB.broadcast(tensor, out, buf.ptrs, buf.signals, size, number, src, kit.rank(), kit.world_size())
    return out
