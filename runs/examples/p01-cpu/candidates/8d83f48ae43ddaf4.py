"""All-reduce through shared memory: publish, wait, add what everybody published."""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

extern "C" void all_reduce(const float* x, float* const* buffers, uint32_t* const* signals, float* out, int64_t n,
                           int rank, int world) {
    memcpy(buffers[rank], x, n);
    rs_barrier(signals, rank, world);
    for (int64_t i = 0; i < n; ++i) {
        double sum = 0;
        for (int r = 0; r < world; ++r) sum += buffers[r][i];
        out[i] = sum;
    }
    rs_barrier(signals, rank, world);
}
"""
_states = {}


def solution(tensor):
    x = tensor.contiguous()
    key = (x.shape, x.dtype)
    if key not in _states:
        _states[key] = kit.build(SOURCE), kit.symmetric(x.shape, x.dtype)
    lib, buf = _states[key]
    out = torch.empty_like(x)
    lib.all_reduce(x, buf.ptrs, buf.signals, out, x.numel(), kit.rank(), kit.world_size())
    return out
