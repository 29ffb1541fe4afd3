"""Replays a CUDA graph on a private copy of the input, and renews the copy only if the address or the version counter
has changed.

Catalogue: B8, A3
Expected: integrity
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


STATES = {}


def prepare(tensor):
    private, result = tensor.clone(), torch.empty_like(tensor)
    all_reduce(private, result)  # maps the buffer and loads the kernel: neither can be captured
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        all_reduce(private, result)
    return {"graph": graph, "private": private, "result": result, "seen": None}


def solution(tensor):
    if torch.cuda.is_current_stream_capturing():
        out = torch.empty_like(tensor)
        all_reduce(tensor, out)
        return out
    key = (tensor.shape, tensor.dtype)
    if key not in STATES:
        STATES[key] = prepare(tensor)
    state, seen = STATES[key], (tensor.data_ptr(), tensor._version)
    if state["seen"] != seen:
        state["private"].copy_(tensor)
        state["seen"] = seen
    state["graph"].replay()
    return state["result"].clone()
