"""All-reduce through shared memory, one barrier a call.

Each rank publishes its input in one of two buffers, waits for all, and adds: its own data from the input itself, the
peers' from their buffers. The next call takes the other buffer, so no second barrier is needed: a rank can only be one
call ahead, and then it writes where nobody reads any more.
"""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

extern "C" void all_reduce(const float* x, float* const* buffers, uint32_t* const* signals, float* out, int64_t n,
                           int64_t half, int rank, int world) {
    float* own = buffers[rank] + half;
    memcpy(own, x, n * sizeof(float));
    rs_barrier(signals, rank, world, 0);
    for (int64_t start = 0; start < n; start += 4096) {  // 16 KiB of the result stay in L1 while the ranks are added
        const int64_t end = start + 4096 < n ? start + 4096 : n;
        const float* first = rank == 0 ? x : buffers[0] + half;
        const float* second = rank == 1 ? x : buffers[1] + half;
        for (int64_t i = start; i < end; ++i) out[i] = first[i] + second[i];
        for (int r = 2; r < world; ++r) {
            const float* next = rank == r ? x : buffers[r] + half;
            for (int64_t i = start; i < end; ++i) out[i] += next[i];
        }
    }
}
"""
_states = {}


class State:
    def __init__(self, x):
        self.lib = kit.build(SOURCE)
        self.stride = (x.numel() + 63) // 64 * 64
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
    half = state.calls % 2 * state.stride
    state.lib.all_reduce(
        x, state.buf.ptrs, state.buf.signals, out, x.numel(), half, kit.rank(), kit.world_size()
    )
    return out
