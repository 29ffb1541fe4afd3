"""RMS norm over a sharded hidden axis in C++: sums of squares of the own columns, exchange of a number per row, scale.

Two halves of the exchange buffer in turn save the second barrier.
"""

import torch

from harness import kit

SOURCE = r"""
#include <cmath>
#include "ringsmith.h"

template <class T>
static void norm(const T* x, const T* weight, T* out, rs_sum<T>* const* squares, uint32_t* const* signals,
                 int64_t rows, int64_t columns, double eps, int half, int rank, int world) {
    rs_sum<T>* mine = squares[rank] + half * rows;
    for (int64_t i = 0; i < rows; ++i) {
        rs_sum<T> sum = 0;
        for (int64_t j = 0; j < columns; ++j) {
            const rs_sum<T> value = rs_to_sum(x[i * columns + j]);
            sum += value * value;
        }
        mine[i] = sum;
    }
    rs_barrier(signals, rank, world, 0);  // all sums of this call are there

    for (int64_t i = 0; i < rows; ++i) {
        rs_sum<T> total = 0;
        for (int r = 0; r < world; ++r) total += squares[r][half * rows + i];
        const rs_sum<T> mean = total / (columns * world);
        const rs_sum<T> scale = 1 / std::sqrt(mean + (rs_sum<T>)eps);
        for (int64_t j = 0; j < columns; ++j) {
            const rs_sum<T> value = rs_to_sum(x[i * columns + j]) * scale;
            rs_round(out[i * columns + j], value * rs_to_sum(weight[j]));
        }
    }
}

extern "C" void rms_norm(const void* x, const void* weight, void* out, void* const* squares,
                         uint32_t* const* signals, int64_t rows, int64_t columns, double eps, int half, int dtype,
                         int rank, int world) {
    switch (dtype) {
        case 0: return norm((const float*)x, (const float*)weight, (float*)out, (float* const*)squares, signals,
                            rows, columns, eps, half, rank, world);
        case 1: return norm((const rs_bf16*)x, (const rs_bf16*)weight, (rs_bf16*)out, (float* const*)squares, signals,
                            rows, columns, eps, half, rank, world);
        case 3: return norm((const double*)x, (const double*)weight, (double*)out, (double* const*)squares, signals,
                            rows, columns, eps, half, rank, world);
    }
}
"""

LIB = kit.build(SOURCE)
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float64: 3}
_states = {}


def solution(local_hidden_states, local_weight, variance_epsilon):
    x, weight = local_hidden_states.contiguous(), local_weight.contiguous()
    rows, columns = x.numel() // x.shape[-1], x.shape[-1]
    key = (rows, x.dtype)
    if key not in _states:
        wide = torch.promote_types(x.dtype, torch.float32)
        _states[key] = [kit.symmetric((2, rows), wide), 0]
    state = _states[key]
    buf, half = state
    state[1] = 1 - half
    out = torch.empty_like(x)
    LIB.rms_norm(
        x,
        weight,
        out,
        buf.ptrs,
        buf.signals,
        rows,
        columns,
        variance_epsilon,
        half,
        DTYPES[x.dtype],
        kit.rank(),
        kit.world_size(),
    )
    return out
