"""Reduce: only the root reads, and the others wait for it at the exit before they may write again."""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

template <class T>
__global__ void reduce_kernel(const T* in, T* out, T* const* buffers, uint32_t* const* signals, int64_t n, int dst,
                              int rank, int world) {
    const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = first; i < n; i += stride) {
        buffers[rank][i] = in[i];
        out[i] = in[i];
    }
    rs_barrier_block(signals, rank, world, blockIdx.x);
    if (rank == dst)
        for (int64_t i = first; i < n; i += stride) {
            float sum = 0;
            for (int r = 0; r < world; ++r) sum += rs_to_sum(buffers[r][i]);
            rs_round(out[i], sum);
        }
    rs_barrier_block(signals, rank, world, blockIdx.x);
}

extern "C" void reduce(const void* in, void* out, void* const* buffers, uint32_t* const* signals, int64_t n,
                       int item_bytes, int dst, int rank, int world, cudaStream_t stream) {
    if (item_bytes == 2)
        reduce_kernel<<<64, 256, 0, stream>>>(
            (const rs_bf16*)in, (rs_bf16*)out, (rs_bf16* const*)buffers, signals, n, dst, rank, world);
    else
        reduce_kernel<<<64, 256, 0, stream>>>(
            (const float*)in, (float*)out, (float* const*)buffers, signals, n, dst, rank, world);
}
"""

LIB = kit.build(SOURCE)
BUFFERS = {}


def solution(tensor, dst=0):
    key = (tensor.numel(), tensor.dtype)
    if key not in BUFFERS:
        BUFFERS[key] = kit.symmetric(tuple(tensor.shape), tensor.dtype)
    buf = BUFFERS[key]
    out = torch.empty_like(tensor)
    LIB.reduce(
        tensor,
        out,
        buf.ptrs,
        buf.signals,
        tensor.numel(),
        tensor.element_size(),
        dst,
        kit.rank(),
        kit.world_size(),
        kit.stream(),
    )
    return out
