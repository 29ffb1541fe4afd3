"""All-reduce in one hop: publish the input, wait for all ranks, add what everybody published."""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

template <class T>
__global__ void __launch_bounds__(512)
one_shot(const T* x, T* const* buffers, uint32_t* const* signals, T* out, int64_t n, int rank, int world) {
    constexpr int width = 16 / sizeof(T);
    const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * width;
    rs_st16_part(buffers[rank], i, n, rs_ld16_part(x, i, n));
    rs_barrier_block(signals, rank, world, blockIdx.x);
    rs_sum<T> sum[width] = {};
    for (int r = 0; r < world; ++r) rs_add16(sum, rs_ld16_part(buffers[r], i, n));
    rs_st16_part(out, i, n, rs_pack16<T>(sum));
    rs_barrier_block(signals, rank, world, blockIdx.x);
}

extern "C" void all_reduce(const void* x, void* buffers, void* signals, void* out, int64_t n, int rank, int world,
                           cudaStream_t stream) {
    using T = rs_bf16;
    int64_t blocks = (n * (int64_t)sizeof(T) + 512 * 16 - 1) / (512 * 16);
    if (blocks > 64) blocks = 64;
    one_shot<T><<<(int)blocks, 512, 0, stream>>>((const T*)x, (T* const*)buffers, (uint32_t* const*)signals, (T*)out, n,
                                                 rank, world);
}
"""
_states = {}


def solution(tensor):
    x = tensor.contiguous()
    if x.dtype != torch.bfloat16:
        raise NotImplementedError("written for bfloat16")
    if x.numel() not in _states:
        _states[x.numel()] = kit.build(SOURCE), kit.symmetric(x.numel(), x.dtype)
    lib, buf = _states[x.numel()]
    out = torch.empty_like(x)
    lib.all_reduce(x, buf.ptrs, buf.signals, out, x.numel(), kit.rank(), kit.world_size(), kit.stream())
    return out
