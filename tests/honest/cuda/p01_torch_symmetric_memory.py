"""PyTorch's own symmetric memory, and its barrier before and after the reads."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

template <class T>
__global__ void sum_kernel(char* const* buffers, int64_t offset, T* out, int64_t n, int world) {
    const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = first; i < n; i += stride) {
        float sum = 0;
        for (int r = 0; r < world; ++r) sum += rs_to_sum(((const T*)(buffers[r] + offset))[i]);
        rs_round(out[i], sum);
    }
}

extern "C" void sum(void* const* buffers, int64_t offset, void* out, int64_t n, int item_bytes, int world,
                    cudaStream_t stream) {
    if (item_bytes == 2)
        sum_kernel<<<128, 256, 0, stream>>>((char* const*)buffers, offset, (rs_bf16*)out, n, world);
    else
        sum_kernel<<<128, 256, 0, stream>>>((char* const*)buffers, offset, (float*)out, n, world);
}
"""

LIB = kit.build(SOURCE)
STATES = {}


def solution(tensor):
    key = (tensor.shape, tensor.dtype)
    if key not in STATES:
        shared = symm_mem.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        STATES[key] = (shared, symm_mem.rendezvous(shared, dist.group.WORLD))
    shared, handle = STATES[key]
    out = torch.empty_like(tensor)
    shared.copy_(tensor)
    handle.barrier(channel=0)
    LIB.sum(
        handle.buffer_ptrs_dev,
        handle.offset,
        out,
        tensor.numel(),
        tensor.element_size(),
        handle.world_size,
        kit.stream(),
    )
    handle.barrier(channel=1)
    return out
