"""C++ that does not compile: an undeclared name.

Expected: compile_error
"""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

extern "C" void copy(const float* in, float* out, int64_t n) {
    for (int64_t i = 0; i < count; ++i) out[i] = in[i];
}
"""

LIB = kit.build(SOURCE)


def solution(tensor):
    out = torch.empty_like(tensor)
    LIB.copy(tensor, out, tensor.numel())
    return out
