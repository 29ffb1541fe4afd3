"""Ring all-reduce: chunks of partial sums travel to the right neighbour (reduce-scatter), then the finished chunks do
(all-gather). Every step has an inbox slot and a flag of its own; a flag holds the number of the call.
"""

import torch

from harness import kit

SOURCE = r"""
#include <vector>
#include "ringsmith.h"

constexpr int FLAGS = 64 * RS_SLOT_WORDS;  // our own flags; the barrier uses slot 0

template <class T>
static void ring(const T* in, T* out, rs_sum<T>* const* inbox, uint32_t* const* signals, int64_t n, uint32_t round,
                 int rank, int world) {
    const int64_t chunk = (n + world - 1) / world;
    auto begin = [&](int c) { return c * chunk < n ? c * chunk : n; };
    auto length = [&](int c) { return begin(c + 1) - begin(c); };
    const int right = (rank + 1) % world;
    uint32_t* flags = signals[rank] + FLAGS;

    // Reduce-scatter. In step s a partial sum of chunk rank - s leaves, one of chunk rank - s - 1 arrives.
    std::vector<rs_sum<T>> partial(chunk);
    for (int64_t i = 0; i < length(rank); ++i) partial[i] = rs_to_sum(in[begin(rank) + i]);
    for (int s = 0; s < world - 1; ++s) {
        const int leaves = (rank - s + world) % world, arrives = (rank - s - 1 + world) % world;
        std::memcpy(inbox[right] + s * chunk, partial.data(), length(leaves) * sizeof(rs_sum<T>));
        rs_signal(signals[right] + FLAGS + s, round);
        rs_wait(flags + s, round);
        const rs_sum<T>* got = inbox[rank] + s * chunk;
        for (int64_t i = 0; i < length(arrives); ++i) partial[i] = got[i] + rs_to_sum(in[begin(arrives) + i]);
    }

    // Now this rank has the whole sum of chunk rank + 1. All-gather: finished chunks go round.
    const int own = (rank + 1) % world;
    for (int64_t i = 0; i < length(own); ++i) rs_round(out[begin(own) + i], partial[i]);
    for (int s = 0; s < world - 1; ++s) {
        const int slot = world - 1 + s;
        const int gone = (rank + 1 - s + world) % world, came = (rank - s + world) % world;
        std::memcpy(inbox[right] + slot * chunk, out + begin(gone), length(gone) * sizeof(T));
        rs_signal(signals[right] + FLAGS + slot, round);
        rs_wait(flags + slot, round);
        std::memcpy(out + begin(came), inbox[rank] + slot * chunk, length(came) * sizeof(T));
    }
    rs_barrier(signals, rank, world, 0);  // the left neighbour may fill the inbox again
}

extern "C" void ring_allreduce(const void* in, void* out, void* const* inbox, uint32_t* const* signals, int64_t n,
                               uint32_t round, int dtype, int rank, int world) {
    switch (dtype) {
        case 0: return ring((const float*)in, (float*)out, (float* const*)inbox, signals, n, round, rank, world);
        case 1: return ring((const rs_bf16*)in, (rs_bf16*)out, (float* const*)inbox, signals, n, round, rank, world);
        case 2: return ring((const rs_fp16*)in, (rs_fp16*)out, (float* const*)inbox, signals, n, round, rank, world);
        case 3: return ring((const double*)in, (double*)out, (double* const*)inbox, signals, n, round, rank, world);
    }
}
"""

LIB = kit.build(SOURCE)
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}
_states = {}


class _State:
    def __init__(self, tensor):
        world = kit.world_size()
        chunk = -(-tensor.numel() // world)
        wide = torch.promote_types(tensor.dtype, torch.float32)
        self.inbox = kit.symmetric((max(1, 2 * (world - 1) * chunk),), wide)
        self.round = 0


def solution(tensor):
    tensor = tensor.contiguous()
    key = (tuple(tensor.shape), tensor.dtype)
    if key not in _states:
        _states[key] = _State(tensor)
    state = _states[key]
    state.round += 1
    out = torch.empty_like(tensor)
    LIB.ring_allreduce(
        tensor,
        out,
        state.inbox.ptrs,
        state.inbox.signals,
        tensor.numel(),
        state.round,
        DTYPES[tensor.dtype],
        kit.rank(),
        kit.world_size(),
    )
    return out
