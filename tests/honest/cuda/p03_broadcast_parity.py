"""Broadcast from any root with one barrier: two halves in turn, by a counter on the device. Only the root writes."""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

__global__ void broadcast_kernel(const char* in, char* out, char* const* buffers, uint32_t* const* signals,
                                 int64_t bytes, int src, int rank, int world) {
    const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (int64_t)gridDim.x * blockDim.x;
    const int64_t half = (rs_epoch(signals, rank, blockIdx.x) & 1) * bytes;
    if (rank == src)
        for (int64_t i = first; i < bytes; i += stride) buffers[rank][half + i] = in[i];
    rs_barrier_block(signals, rank, world, blockIdx.x);
    for (int64_t i = first; i < bytes; i += stride) out[i] = buffers[src][half + i];
}

extern "C" void broadcast(const void* in, void* out, void* const* buffers, uint32_t* const* signals, int64_t bytes,
                       int src, int rank, int world, cudaStream_t stream) {
    broadcast_kernel<<<64, 512, 0, stream>>>(
        (const char*)in, (char*)out, (char* const*)buffers, signals, bytes, src, rank, world);
}
"""

LIB = kit.build(SOURCE)
BUFFERS = {}


def solution(tensor, src=0):
    nbytes = tensor.numel() * tensor.element_size()
    if nbytes not in BUFFERS:
        BUFFERS[nbytes] = kit.symmetric((2 * nbytes,), torch.uint8)
    buf = BUFFERS[nbytes]
    out = torch.empty_like(tensor)
    LIB.broadcast(tensor, out, buf.ptrs, buf.signals, nbytes, src, kit.rank(), kit.world_size(), kit.stream())
    return out
