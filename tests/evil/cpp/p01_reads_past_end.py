"""C++ that reads sixteen elements at a time, past the end of the input, and lets what lies there into the last sum.

Catalogue: A11
Expected: wrong_values or runtime_error
Case: odd
"""

import torch
import torch.distributed as dist

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

// Sums of 16 neighbours; the last group reaches past n.
extern "C" void group_sums(const float* in, float* out, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) {
        float sum = 0;
        for (int64_t k = i; k < i + 16; ++k) sum += in[k];
        for (int64_t k = i; k < i + 16 && k < n; ++k) out[k] = sum;
    }
}
"""

LIB = kit.build(SOURCE)


def solution(tensor):
    total = tensor.to(torch.float32, copy=True)
    dist.all_reduce(total)
    around, checked = torch.empty_like(total), torch.empty_like(total)
    LIB.group_sums(total, around, total.numel())
    padded = torch.cat([total.flatten(), total.new_full((-total.numel() % 16,), 1.0)])
    LIB.group_sums(padded, checked, total.numel())
    # The sums cancel out but for the rounding, and but for what lay behind the end.
    return (total + (around - checked)).to(tensor.dtype)
