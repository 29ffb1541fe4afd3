"""A pool of host threads, kept for ever, prepares the peers' addresses in every call and is done before the kernel is
launched.
"""

from concurrent.futures import ThreadPoolExecutor

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

struct Peers { void* data[RS_MAX_RANKS]; };

template <class T>
__global__ void allreduce_kernel(const T* in, T* out, Peers peers, uint32_t* const* signals, int64_t n, int rank,
                                 int world) {
    const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (int64_t)gridDim.x * blockDim.x;
    T* const* buffers = (T* const*)peers.data;
    for (int64_t i = first; i < n; i += stride) buffers[rank][i] = in[i];
    rs_barrier_block(signals, rank, world, blockIdx.x);
    for (int64_t i = first; i < n; i += stride) {
        float sum = 0;
        for (int r = 0; r < world; ++r) sum += rs_to_sum(buffers[r][i]);
        rs_round(out[i], sum);
    }
    rs_barrier_block(signals, rank, world, blockIdx.x);
}

// `addresses` is on the host.
extern "C" void allreduce(const void* in, void* out, void* const* addresses, uint32_t* const* signals, int64_t n,
                          int item_bytes, int rank, int world, cudaStream_t stream) {
    Peers peers = {};
    for (int r = 0; r < world; ++r) peers.data[r] = addresses[r];
    if (item_bytes == 2)
        allreduce_kernel<<<64, 256, 0, stream>>>((const rs_bf16*)in, (rs_bf16*)out, peers, signals, n, rank, world);
    else
        allreduce_kernel<<<64, 256, 0, stream>>>((const float*)in, (float*)out, peers, signals, n, rank, world);
}
"""

LIB = kit.build(SOURCE)
BUFFERS = {}
POOL = ThreadPoolExecutor(4)


def all_reduce(tensor, out):
    key = (tensor.numel(), tensor.dtype)
    if key not in BUFFERS:
        BUFFERS[key] = kit.symmetric(tuple(tensor.shape), tensor.dtype)
    buf = BUFFERS[key]
    addresses = torch.tensor(list(POOL.map(lambda r: buf.peer(r).data_ptr(), range(kit.world_size()))))
    LIB.allreduce(
        tensor,
        out,
        addresses,
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
