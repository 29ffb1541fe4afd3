"""A kernel waits for a flag that nobody will ever raise.

Expected: deadlock
"""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

__global__ void spin_kernel(const uint32_t* flag) { rs_wait(flag, 1); }

extern "C" void spin(const uint32_t* flag, cudaStream_t stream) { spin_kernel<<<1, 1, 0, stream>>>(flag); }
"""

LIB = kit.build(SOURCE)


def solution(tensor):
    LIB.spin(torch.zeros(1, dtype=torch.int32, device=tensor.device), kit.stream())
    return tensor.clone()
