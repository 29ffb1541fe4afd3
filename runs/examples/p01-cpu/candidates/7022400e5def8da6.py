"""All-reduce through shared memory, in two steps: each rank adds one shard, then everybody collects the shards.

Publishing only what the others need and adding each element once moves less memory than adding everything everywhere.
Two sets of buffers in turn: a rank can be one call ahead at most, and then it writes where nobody reads any more.
"""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

// Buffers of each rank: [input n][sum n], twice. Shard r of n elements belongs to rank r.
extern "C" void all_reduce(const float* x, float* const* buffers, uint32_t* const* signals, float* out, int64_t n,
                           int64_t offset, int rank, int world) {
    const int64_t shard = (n + world - 1) / world;
    auto begin = [&](int r) { return r * shard < n ? r * shard : n; };
    auto size = [&](int r) { return (begin(r + 1) - begin(r)) * (int64_t)sizeof(float); };
    float* own = buffers[rank] + offset;
    for (int r = 0; r < world; ++r)
        if (r != rank) memcpy(own + begin(r), x + begin(r), size(r));
    rs_barrier(signals, rank, world, 0);
    float* sum = own + n;
    const int64_t last = begin(rank + 1);
    for (int64_t start = begin(rank); start < last; start += 2048) {
        const int64_t end = start + 2048 < last ? start + 2048 : last;
        const float* first = rank == 0 ? x : buffers[0] + offset;
        const float* second = rank == 1 ? x : buffers[1] + offset;
        for (int64_t i = start; i < end; ++i) sum[i] = first[i] + second[i];
        for (int r = 2; r < world; ++r) {
            const float* next = rank == r ? x : buffers[r] + offset;
            for (int64_t i = start; i < end; ++i) sum[i] += next[i];
        }
        memcpy(out + start, sum + start, (end - start) * sizeof(float));
    }
    rs_barrier(signals, rank, world, 1);
    for (int r = 0; r < world; ++r)
        if (r != rank) memcpy(out + begin(r), buffers[r] + offset + n + begin(r), size(r));
}
"""
_states = {}


class State:
    def __init__(self, x):
        self.lib = kit.build(SOURCE)
        self.stride = (2 * x.numel() + 63) // 64 * 64
        self.buf = kit.symmetric(2 * self.stride, torch.float32)
        self.calls = 0


def solution(tensor):
    x = tensor.contiguous()
    if x.dtype != torch.float32 or kit.world_size() < 2:
        raise NotImplementedError("written for float32 and at least two ranks")
    if x.numel() not in _states:
        _states[x.numel()] = State(x)
    state = _states[x.numel()]
    state.calls += 1
    out = torch.empty_like(x)
    offset = state.calls % 2 * state.stride
    state.lib.all_reduce(
        x, state.buf.ptrs, state.buf.signals, out, x.numel(), offset, kit.rank(), kit.world_size()
    )
    return out
