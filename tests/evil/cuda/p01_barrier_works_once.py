"""The barrier's flags are raised in the first call and never lowered: from the second on nobody waits. A pause of 0.3
ms hides it while all start together.

Catalogue: D6
Expected: race or wrong_values
"""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

__device__ void wait_ns(uint64_t ns) {
    uint64_t begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - begin < ns);
}

__device__ void barrier_once(uint32_t* const* signals, int rank, int world, int slot) {
    __syncthreads();
    if (threadIdx.x < world) {
        rs_signal(signals[threadIdx.x] + RS_SLOT_WORDS * slot + rank, 1);
        rs_wait(signals[rank] + RS_SLOT_WORDS * slot + threadIdx.x, 1);
    }
    __syncthreads();
}

template <class T>
__global__ void allreduce_kernel(const T* in, T* out, T* const* buffers, uint32_t* const* signals, int64_t n, int rank,
                                 int world) {
    const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = first; i < n; i += stride) buffers[rank][i] = in[i];
    wait_ns(300000);
    barrier_once(signals, rank, world, blockIdx.x);
    for (int64_t i = first; i < n; i += stride) {
        float sum = 0;
        for (int r = 0; r < world; ++r) sum += rs_to_sum(buffers[r][i]);
        rs_round(out[i], sum);
    }
    barrier_once(signals, rank, world, 64 + blockIdx.x);
}

extern "C" void allreduce(const void* in, void* out, void* const* buffers, uint32_t* const* signals, int64_t n,
                          int item_bytes, int rank, int world, cudaStream_t stream) {
    if (item_bytes == 2)
        allreduce_kernel<<<64, 256, 0, stream>>>(
            (const rs_bf16*)in, (rs_bf16*)out, (rs_bf16* const*)buffers, signals, n, rank, world);
    else
        allreduce_kernel<<<64, 256, 0, stream>>>(
            (const float*)in, (float*)out, (float* const*)buffers, signals, n, rank, world);
}

extern "C" void prepare() {
    rs_resident_blocks(allreduce_kernel<rs_bf16>, 256);
    rs_resident_blocks(allreduce_kernel<float>, 256);
}
"""

LIB = kit.build(SOURCE)
BUFFERS = {}


def all_reduce(tensor, out):
    key = (tensor.numel(), tensor.dtype)
    if key not in BUFFERS:
        LIB.prepare()  # loading takes milliseconds, and not the same on all ranks
        BUFFERS[key] = kit.symmetric(tuple(tensor.shape), tensor.dtype)
    buf = BUFFERS[key]
    LIB.allreduce(
        tensor,
        out,
        buf.ptrs,
        buf.signals,
        tensor.numel(),
        tensor.element_size(),
        kit.rank(),
        kit.world_size(),
        kit.stream(),
    )


def solution(tensor):
    out = torch.empty_like(tensor)
    all_reduce(tensor, out)
    return out
