"""Pushes its slice to all, raises flags of its own making and copies each slice as soon as it is there. Two halves in
turn, and no barrier: every block waits for all peers' flags of a round, and a peer raises that of the next round
only when it has copied this one. The round number is kept on the device.
"""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

__global__ void gather_kernel(const char* in, char* out, char* const* buffers, uint32_t* const* signals,
                              uint32_t* rounds, int64_t bytes, int rank, int world) {
    const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (int64_t)gridDim.x * blockDim.x;
    __shared__ uint32_t round;
    if (threadIdx.x == 0) round = ++rounds[blockIdx.x];
    __syncthreads();
    const int64_t half = (round & 1) * world * bytes;
    for (int step = 0; step < world; ++step) {
        char* to = buffers[(rank + step) % world] + half + rank * bytes;
        for (int64_t i = first; i < bytes; i += stride) to[i] = in[i];
    }
    __syncthreads();
    if (threadIdx.x < world) rs_signal(signals[threadIdx.x] + RS_SLOT_WORDS * blockIdx.x + rank, round);
    for (int step = 0; step < world; ++step) {
        const int from = (rank + step) % world;
        if (threadIdx.x == 0) rs_wait(signals[rank] + RS_SLOT_WORDS * blockIdx.x + from, round);
        __syncthreads();
        const char* arrived = buffers[rank] + half + from * bytes;
        for (int64_t i = first; i < bytes; i += stride) out[from * bytes + i] = arrived[i];
    }
}

extern "C" void allgather(const void* in, void* out, void* const* buffers, uint32_t* const* signals, uint32_t* rounds,
                          int64_t bytes, int rank, int world, cudaStream_t stream) {
    gather_kernel<<<64, 512, 0, stream>>>(
        (const char*)in, (char*)out, (char* const*)buffers, signals, rounds, bytes, rank, world);
}
"""

LIB = kit.build(SOURCE)
STATES = {}


def solution(tensor):
    world, nbytes = kit.world_size(), tensor.numel() * tensor.element_size()
    if nbytes not in STATES:
        rounds = torch.zeros(64, dtype=torch.int32, device=tensor.device)
        STATES[nbytes] = (kit.symmetric((2 * world * nbytes,), torch.uint8), rounds)
    buf, rounds = STATES[nbytes]
    out = torch.empty((world, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
    LIB.allgather(tensor, out, buf.ptrs, buf.signals, rounds, nbytes, kit.rank(), world, kit.stream())
    return out
