"""Rank 1 never signals; all others spin in C++ until it does.

Catalogue: D7
Expected: deadlock
"""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

extern "C" void wait_for_all(uint32_t* const* signals, int rank, int world) {
    if (rank == 1) return;
    for (int r = 0; r < world; ++r) rs_signal(signals[r] + rank, 1);
    for (int r = 0; r < world; ++r) rs_wait(signals[rank] + r, 1);
}
"""

LIB = kit.build(SOURCE)


def solution(tensor):
    buf = kit.symmetric(tuple(tensor.shape), tensor.dtype)
    buf.local.copy_(tensor)
    LIB.wait_for_all(buf.signals, kit.rank(), kit.world_size())
    return torch.stack([buf.peer(r) for r in range(kit.world_size())]).sum(0)
