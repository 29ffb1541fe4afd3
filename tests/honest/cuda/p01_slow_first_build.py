"""Puts its source together when it knows the number of ranks, so that all of it is compiled in the first call: a kernel
for each of 32 ways to unroll it, of which one is used.
"""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

constexpr int WORLD = WORLD_SIZE;

template <class T, int UNROLL>
__global__ void allreduce_kernel(const T* in, T* out, T* const* buffers, uint32_t* const* signals, int64_t n,
                                 int rank) {
    const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = first; i < n; i += stride) buffers[rank][i] = in[i];
    rs_barrier_block(signals, rank, WORLD, blockIdx.x);
    for (int64_t begin = first; begin < n; begin += stride * UNROLL) {
        float sum[UNROLL] = {};
#pragma unroll
        for (int r = 0; r < WORLD; ++r)
#pragma unroll
            for (int k = 0; k < UNROLL; ++k)
                if (begin + k * stride < n) sum[k] += rs_to_sum(buffers[r][begin + k * stride]);
#pragma unroll
        for (int k = 0; k < UNROLL; ++k)
            if (begin + k * stride < n) rs_round(out[begin + k * stride], sum[k]);
    }
    rs_barrier_block(signals, rank, WORLD, blockIdx.x);
}

template <class T, int UNROLL>
void launch(const void* in, void* out, void* const* buffers, uint32_t* const* signals, int64_t n, int unroll, int rank,
            cudaStream_t stream) {
    if constexpr (UNROLL > 0) {
        if (unroll < UNROLL)
            return launch<T, UNROLL - 1>(in, out, buffers, signals, n, unroll, rank, stream);
        allreduce_kernel<T, UNROLL><<<64, 256, 0, stream>>>(
            (const T*)in, (T*)out, (T* const*)buffers, signals, n, rank);
    }
}

extern "C" void allreduce(const void* in, void* out, void* const* buffers, uint32_t* const* signals, int64_t n,
                          int item_bytes, int unroll, int rank, cudaStream_t stream) {
    if (item_bytes == 2) launch<rs_bf16, 16>(in, out, buffers, signals, n, unroll, rank, stream);
    else launch<float, 16>(in, out, buffers, signals, n, unroll, rank, stream);
}
"""
STATES = {}


def solution(tensor):
    key = (tensor.shape, tensor.dtype)
    if key not in STATES:
        text = SOURCE.replace("WORLD_SIZE", str(kit.world_size()))
        STATES[key] = (kit.build(text), kit.symmetric(tuple(tensor.shape), tensor.dtype))
    lib, buf = STATES[key]
    out = torch.empty_like(tensor)
    lib.allreduce(
        tensor,
        out,
        buf.ptrs,
        buf.signals,
        tensor.numel(),
        tensor.element_size(),
        4,
        kit.rank(),
        kit.stream(),
    )
    return out
