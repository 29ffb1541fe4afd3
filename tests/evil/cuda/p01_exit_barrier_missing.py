"""A pattern that is often taught: copy into the symmetric buffer, barrier, read all peers into one static output.
Nothing keeps the next call from overwriting what a slow peer still reads: one whose host has fallen behind reads
late.

Catalogue: D5
Expected: race
"""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

template <class T>
__global__ void add_kernel(const T* part, float* sums, T* out, int64_t n, int step, int steps) {
    const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = first; i < n; i += stride) {
        const float sum = (step ? sums[i] : 0) + rs_to_sum(part[i]);
        if (step + 1 < steps) sums[i] = sum;
        else rs_round(out[i], sum);
    }
}

extern "C" void add(const void* part, float* sums, void* out, int64_t n, int item_bytes, int step, int steps,
                    cudaStream_t stream) {
    if (item_bytes == 2)
        add_kernel<<<264, 512, 0, stream>>>((const rs_bf16*)part, sums, (rs_bf16*)out, n, step, steps);
    else
        add_kernel<<<264, 512, 0, stream>>>((const float*)part, sums, (float*)out, n, step, steps);
}
"""

LIB = kit.build(SOURCE)
STATES = {}


def solution(tensor):
    key = (tensor.shape, tensor.dtype)
    if key not in STATES:
        shared = symm_mem.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        handle = symm_mem.rendezvous(shared, dist.group.WORLD)
        STATES[key] = (shared, handle, torch.empty_like(tensor, dtype=torch.float32), torch.empty_like(tensor))
    shared, handle, sums, out = STATES[key]
    shared.copy_(tensor)
    handle.barrier(channel=0)
    for r in range(handle.world_size):
        part = shared if r == handle.rank else handle.get_remote_tensor(r, tensor.shape, tensor.dtype)
        n, size = tensor.numel(), tensor.element_size()
        LIB.add(part, sums, out, n, size, r, handle.world_size, kit.stream())
    return out
