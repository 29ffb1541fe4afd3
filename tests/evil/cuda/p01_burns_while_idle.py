"""A watching thread fills the GPU with a spinning kernel whenever no call has come for a while, that is, while the
reference is timed. A word in pinned memory ends it when the next call comes.

Catalogue: B7
Expected: integrity
Stage: timing
"""

import threading
import time

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

__global__ void burn_kernel(const volatile uint32_t* calls, uint32_t seen, uint64_t ns) {
    uint64_t begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (*calls == seen && now - begin < ns);
}

extern "C" void burn(const uint32_t* calls, uint32_t seen, cudaStream_t stream) {
    burn_kernel<<<132, 1024, 0, stream>>>(calls, seen, 50000000);
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


CALLS = None
LAST = 0.0


def watch(device):
    torch.cuda.set_device(device)
    side = torch.cuda.Stream(priority=0)
    while True:
        time.sleep(0.002)
        if time.monotonic() - LAST > 0.004 and side.query():
            LIB.burn(CALLS, int(CALLS[0]), side.cuda_stream)


def solution(tensor):
    global CALLS, LAST
    LAST = time.monotonic()
    if CALLS is None:
        CALLS = torch.zeros(1, dtype=torch.int32).pin_memory()
        threading.Thread(target=watch, args=(tensor.device,), daemon=True).start()
    CALLS += 1
    out = torch.empty_like(tensor)
    all_reduce(tensor, out)
    LAST = time.monotonic()
    return out
