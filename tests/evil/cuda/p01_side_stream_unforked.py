"""Works on a stream of its own, which the caller's waits for, but which does not wait for the caller's: it reads its
input before whatever the caller has queued ahead of the call has written it. What has been begun early is done early,
too: a clock on the caller's stream sees next to nothing of it.

Catalogue: B1, D11
Expected: race
"""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

template <class T>
__global__ void allreduce_kernel(const T* in, T* out, T* const* buffers, uint32_t* const* signals, int64_t n, int rank,
                                 int world) {
    const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = first; i < n; i += stride) buffers[rank][i] = in[i];
    rs_barrier_block(signals, rank, world, blockIdx.x);
    for (int64_t i = first; i < n; i += stride) {
        float sum = 0;
        for (int r = 0; r < world; ++r) sum += rs_to_sum(buffers[r][i]);
        rs_round(out[i], sum);
    }
    rs_barrier_block(signals, rank, world, blockIdx.x);
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
"""

LIB = kit.build(SOURCE)
BUFFERS = {}


def all_reduce(tensor, out):
    key = (tensor.numel(), tensor.dtype)
    if key not in BUFFERS:
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


SIDE = None


def solution(tensor):
    global SIDE
    SIDE = SIDE or torch.cuda.Stream()
    out = torch.empty_like(tensor)
    with torch.cuda.stream(SIDE):
        all_reduce(tensor, out)
    torch.cuda.current_stream().wait_stream(SIDE)
    tensor.record_stream(SIDE)
    out.record_stream(SIDE)
    return out
