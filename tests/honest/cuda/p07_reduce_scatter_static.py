"""Reduce-scatter into one kept output. Each block publishes the same stretch of all row blocks, so the equal block of a
peer finds what it needs.
"""

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

template <class T>
__global__ void scatter_kernel(const T* in, T* out, T* const* buffers, uint32_t* const* signals, int64_t shard,
                               int rank, int world) {
    const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (int64_t)gridDim.x * blockDim.x;
    for (int p = 0; p < world; ++p)
        for (int64_t i = first; i < shard; i += stride) buffers[rank][p * shard + i] = in[p * shard + i];
    rs_barrier_block(signals, rank, world, blockIdx.x);
    for (int64_t i = first; i < shard; i += stride) {
        float sum = 0;
        for (int r = 0; r < world; ++r) sum += rs_to_sum(buffers[r][rank * shard + i]);
        rs_round(out[i], sum);
    }
    rs_barrier_block(signals, rank, world, blockIdx.x);
}

extern "C" void reducescatter(const void* in, void* out, void* const* buffers, uint32_t* const* signals,
                              int64_t shard, int item_bytes, int rank, int world, cudaStream_t stream) {
    if (item_bytes == 2)
        scatter_kernel<<<64, 256, 0, stream>>>(
            (const rs_bf16*)in, (rs_bf16*)out, (rs_bf16* const*)buffers, signals, shard, rank, world);
    else
        scatter_kernel<<<64, 256, 0, stream>>>(
            (const float*)in, (float*)out, (float* const*)buffers, signals, shard, rank, world);
}
"""

LIB = kit.build(SOURCE)
STATES = {}


def solution(tensor):
    world, key = kit.world_size(), (tensor.shape, tensor.dtype)
    if key not in STATES:
        out = tensor.new_empty(tensor.shape[0] // world, *tensor.shape[1:])
        STATES[key] = (kit.symmetric(tuple(tensor.shape), tensor.dtype), out)
    buf, out = STATES[key]
    LIB.reducescatter(
        tensor,
        out,
        buf.ptrs,
        buf.signals,
        out.numel(),
        tensor.element_size(),
        kit.rank(),
        world,
        kit.stream(),
    )
    return out
