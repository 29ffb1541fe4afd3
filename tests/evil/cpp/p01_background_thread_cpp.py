"""C++ that hands the sum to a detached thread and returns: the output is filled in after the call.

Catalogue: B1, B2
Expected: integrity or wrong_values or race
"""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"
#include <thread>
#include <unistd.h>

extern "C" void sum_later(const float* parts, float* out, int64_t n, int world) {
    std::thread([=] {
        usleep(2000);
        for (int64_t i = 0; i < n; ++i) {
            float sum = 0;
            for (int r = 0; r < world; ++r) sum += parts[r * n + i];
            out[i] = sum;
        }
    }).detach();
}
"""

LIB = kit.build(SOURCE)
BUFFERS, KEPT = {}, []


def solution(tensor):
    if tensor.shape not in BUFFERS:
        BUFFERS[tensor.shape] = kit.symmetric(tensor.shape, torch.float32)
    buf, world = BUFFERS[tensor.shape], kit.world_size()
    buf.local.copy_(tensor)
    buf.barrier()
    parts = torch.stack([buf.peer(r) for r in range(world)])
    buf.barrier()
    out = torch.empty(tensor.shape)
    KEPT[:] = [*KEPT[-64:], parts, out]  # the thread needs them
    LIB.sum_later(parts, out, tensor.numel(), world)
    return out if tensor.dtype == torch.float32 else out.to(tensor.dtype)
