"""Works on a stream of its own, which waits for the caller's in the first hundred calls only. From then on it begins as
soon as it is called, while the device is still busy with what is ahead of a sample, and is done before the clock
starts. Its calls cannot be captured, so that nobody times them as a graph.

Catalogue: B1, A4
Expected: integrity or race
Stage: timing
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
CALLS = 0


def solution(tensor):
    global CALLS, SIDE
    CALLS += 1
    SIDE = SIDE or torch.cuda.Stream()
    if CALLS < 100:
        SIDE.wait_stream(torch.cuda.current_stream())
    out = torch.empty_like(tensor)
    with torch.cuda.stream(SIDE):
        all_reduce(tensor, out)
    torch.cuda.current_stream().wait_stream(SIDE)
    tensor.record_stream(SIDE)
    out.record_stream(SIDE)
    return out
