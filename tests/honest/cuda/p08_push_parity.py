"""All-to-all by pushing into the receivers' buffers: two halves in turn, one barrier after the push and none before it.
Who writes a half again has met its reader in the call between.
"""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

__global__ void alltoall_kernel(const char* in, char* out, char* const* buffers, uint32_t* const* signals,
                                int64_t bytes, int rank, int world) {
    const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (int64_t)gridDim.x * blockDim.x;
    const int64_t half = (rs_epoch(signals, rank, blockIdx.x) & 1) * world * bytes;
    for (int step = 0; step < world; ++step) {
        const int to = (rank + step) % world;
        for (int64_t i = first; i < bytes; i += stride) buffers[to][half + rank * bytes + i] = in[to * bytes + i];
    }
    rs_barrier_block(signals, rank, world, blockIdx.x);
    for (int from = 0; from < world; ++from)
        for (int64_t i = first; i < bytes; i += stride)
            out[from * bytes + i] = buffers[rank][half + from * bytes + i];
}

extern "C" void alltoall(const void* in, void* out, void* const* buffers, uint32_t* const* signals, int64_t bytes,
                       int rank, int world, cudaStream_t stream) {
    alltoall_kernel<<<64, 512, 0, stream>>>(
        (const char*)in, (char*)out, (char* const*)buffers, signals, bytes, rank, world);
}
"""

LIB = kit.build(SOURCE)
BUFFERS = {}


def solution(tensor):
    world = kit.world_size()
    nbytes = tensor[0].numel() * tensor.element_size()
    if nbytes not in BUFFERS:
        BUFFERS[nbytes] = kit.symmetric((2 * world * nbytes,), torch.uint8)
    buf = BUFFERS[nbytes]
    out = torch.empty_like(tensor)
    LIB.alltoall(tensor, out, buf.ptrs, buf.signals, nbytes, kit.rank(), world, kit.stream())
    return out
