"""All-reduce in two hops: each rank adds its shard of all inputs and pushes the sums to everybody.

A rank receives about two thirds of what it would in one hop with four ranks. Two barriers a call are enough: inputs are
read before the second, and sums are overwritten only after the first barrier of the next call.
"""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

// Shard s of the elements belongs to rank s. Block b of every rank works on the same places of every shard, because the
// barrier joins blocks of equal index only. A buffer holds the inputs (n elements, padded) and then the sums.
template <class T>
__global__ void __launch_bounds__(512)
two_shot(const T* x, T* const* buffers, uint32_t* const* signals, T* out, int64_t n, int64_t shard, int rank, int world) {
    constexpr int width = 16 / sizeof(T);
    const int64_t first = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * width;
    const int64_t step = (int64_t)gridDim.x * blockDim.x * width;
    const int64_t sums = shard * world;
    for (int64_t j = first; j < shard; j += step)
        for (int s = 0; s < world; ++s) rs_st16(buffers[rank] + s * shard + j, rs_ld16_part(x, s * shard + j, n));
    rs_barrier_block(signals, rank, world, blockIdx.x);
    for (int64_t j = first; j < shard; j += step) {
        uint4 word[8];
#pragma unroll
        for (int r = 0; r < 8; ++r)  // all loads in flight before the first sum
            if (r < world) word[r] = rs_ld16(buffers[r] + rank * shard + j);
        rs_sum<T> sum[width] = {};
#pragma unroll
        for (int r = 0; r < 8; ++r)
            if (r < world) rs_add16<T>(sum, word[r]);
        const uint4 packed = rs_pack16<T>(sum);
        for (int r = 0; r < world; ++r) rs_st16(buffers[(rank + r) % world] + sums + rank * shard + j, packed);
    }
    rs_barrier_block(signals, rank, world, blockIdx.x);
    for (int64_t j = first; j < shard; j += step)
        for (int s = 0; s < world; ++s) rs_st16_part(out, s * shard + j, n, rs_ld16(buffers[rank] + sums + s * shard + j));
}

extern "C" void all_reduce(const void* x, void* buffers, void* signals, void* out, int64_t n, int rank, int world,
                           cudaStream_t stream) {
    using T = rs_bf16;
    const int width = 16 / sizeof(T);
    const int64_t shard = ((n + world - 1) / world + width - 1) / width * width;
    int64_t blocks = (shard / width + 511) / 512;
    const int resident = rs_resident_blocks(two_shot<T>, 512);
    if (blocks > resident) blocks = resident;
    two_shot<T><<<(int)blocks, 512, 0, stream>>>((const T*)x, (T* const*)buffers, (uint32_t* const*)signals, (T*)out, n,
                                                 shard, rank, world);
}
"""
_states = {}


def solution(tensor):
    x = tensor.contiguous()
    if x.dtype != torch.bfloat16:
        raise NotImplementedError("written for bfloat16")
    if x.numel() not in _states:
        _states[x.numel()] = kit.build(SOURCE), kit.symmetric(2 * (x.numel() + 8 * kit.world_size()), x.dtype)
    lib, buf = _states[x.numel()]
    out = torch.empty_like(x)
    lib.all_reduce(x, buf.ptrs, buf.signals, out, x.numel(), kit.rank(), kit.world_size(), kit.stream())
    return out
