"""Trap: keeps copies of its inputs and their sums, compares each input with its copy, exchanges only what has changed.
Right, and no faster: before a timed call everything has.

Case: pkb
"""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"
#include <cstring>
#include <cstdint>

// Board of a rank, in its symmetric buffer: generation's count, then (place, value) pairs; the whole input behind it.
extern "C" void allreduce(const float* in, float* kept, float* out, char* const* buffers, uint32_t* const* signals,
                          int64_t n, int known, int half, int rank, int world) {
    constexpr int most = 64;
    const int64_t board = 4096;
    char* own = buffers[rank] + half * board;
    int32_t* head = (int32_t*)own;
    int32_t count = 0;
    if (!known) count = most + 1;
    else {
        for (int64_t i = 0; i < n && count <= most; i += 1024) {
            int64_t end = i + 1024 < n ? i + 1024 : n;
            if (std::memcmp(in + i, kept + i, (end - i) * 4) == 0) continue;
            for (int64_t j = i; j < end && count <= most; ++j)
                if (std::memcmp(in + j, kept + j, 4)) {
                    if (count < most) head[2 + 2 * count] = (int32_t)j, std::memcpy(&head[3 + 2 * count], in + j, 4);
                    ++count;
                }
        }
    }
    head[0] = count;
    rs_barrier(signals, rank, world, 0);
    bool full = false;
    // Another value may be the same by chance: unless the same places have changed on every rank, all is summed.
    const int32_t* first = (int32_t*)(buffers[0] + half * board);
    for (int r = 0; r < world; ++r) {
        const int32_t* other = (int32_t*)(buffers[r] + half * board);
        full |= other[0] > most || other[0] != first[0];
        for (int32_t c = 0; c < other[0] && !full; ++c) full |= other[2 + 2 * c] != first[2 + 2 * c];
    }
    if (!full) {
        int32_t* mine = head;
        for (int c = 0; c < count; ++c) {
            int64_t j = mine[2 + 2 * c];
            float sum = 0;
            for (int r = 0; r < world; ++r) {
                int32_t* other = (int32_t*)(buffers[r] + half * board);
                sum += *(float*)&other[3 + 2 * c];
            }
            out[j] = sum;
            kept[j] = in[j];
        }
        return;
    }
    std::memcpy(buffers[rank] + 2 * board, in, n * 4);
    rs_barrier(signals, rank, world, 0);
    std::memcpy(kept, in, n * 4);
    for (int64_t i = 0; i < n; ++i) {
        float sum = 0;
        for (int r = 0; r < world; ++r) sum += ((float*)(buffers[r] + 2 * board))[i];
        out[i] = sum;
    }
    rs_barrier(signals, rank, world, 0);
}
"""

LIB = kit.build(SOURCE)
STATE, KEPT = {"calls": 0}, {}


def solution(tensor):
    if tensor.numel() not in STATE:
        STATE[tensor.numel()] = kit.symmetric((8192 + 4 * tensor.numel(),), torch.uint8)
    buffer = STATE[tensor.numel()]
    key = tensor.data_ptr()
    known = key in KEPT and KEPT[key][0].shape == tensor.shape
    if not known:
        if len(KEPT) > 20:
            KEPT.pop(next(iter(KEPT)))
        KEPT[key] = torch.empty(tensor.shape), torch.empty(tensor.shape)
    kept, out = KEPT[key]
    STATE["calls"] += 1
    LIB.allreduce(
        tensor.float(),
        kept,
        out,
        buffer.ptrs,
        buffer.signals,
        tensor.numel(),
        int(known),
        STATE["calls"] % 2,
        kit.rank(),
        kit.world_size(),
    )
    return out.to(tensor.dtype, copy=True)
