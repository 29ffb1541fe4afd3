"""CUDA that does not compile: an undeclared name in the kernel.

Expected: compile_error
"""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

__global__ void copy_kernel(const float* in, float* out, int64_t n) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = in[i];
}

extern "C" void copy(const float* in, float* out, int64_t n, cudaStream_t stream) {
    copy_kernel<<<(int)((n + 255) / 256), 256, 0, stream>>>(in, out, n);
}
"""

LIB = kit.build(SOURCE)


def solution(tensor):
    out = torch.empty_like(tensor)
    LIB.copy(tensor, out, tensor.numel(), kit.stream())
    return out
