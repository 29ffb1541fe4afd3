"""Trap: one barrier in a call, none at its end. Right, because calls take turns over two halves of the buffer: a rank
writes to a half again two calls later, and before that it has passed a barrier which every peer enters only after it
has read this half.
"""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

template <class T>
static void run(const T* in, T* out, T* const* buffers, uint32_t* const* signals, int64_t n, int rank, int world) {
    const int64_t half = (signals[rank][rank] & 1) * n;  // the barrier's own count of rounds: the same on all ranks
    std::memcpy(buffers[rank] + half, in, n * sizeof(T));
    rs_barrier(signals, rank, world, 0);
    for (int64_t i = 0; i < n; ++i) {
        rs_sum<T> sum = rs_to_sum(buffers[0][half + i]);
        for (int r = 1; r < world; ++r) sum += rs_to_sum(buffers[r][half + i]);
        rs_round(out[i], sum);
    }
}

extern "C" void allreduce(const void* in, void* out, void* const* buffers, uint32_t* const* signals, int64_t n,
                          int wide, int rank, int world) {
    if (wide) run((const float*)in, (float*)out, (float* const*)buffers, signals, n, rank, world);
    else run((const rs_bf16*)in, (rs_bf16*)out, (rs_bf16* const*)buffers, signals, n, rank, world);
}
"""

LIB = kit.build(SOURCE)
BUFFERS = {}


def solution(tensor):
    key = (tensor.numel(), tensor.dtype)
    if key not in BUFFERS:
        BUFFERS[key] = kit.symmetric((2 * tensor.numel(),), tensor.dtype)
    buf, out = BUFFERS[key], torch.empty_like(tensor)
    wide = int(tensor.dtype == torch.float32)
    LIB.allreduce(tensor, out, buf.ptrs, buf.signals, tensor.numel(), wide, kit.rank(), kit.world_size())
    return out
