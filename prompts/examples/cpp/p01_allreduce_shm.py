"""All-reduce through shared memory: each rank sums one shard, so every element is added once, not once per rank.

Publish: each rank copies the shards that others own into its symmetric buffer; its own stays where it is. Sum: each
rank adds its shard over all ranks, in the order of ranks, and writes it to its output and into the second part of
its buffer. Collect: each rank copies the other shards from their owners. Two barriers; the next call needs none
before it (see run).
"""

import torch

from harness import kit

SOURCE = r"""
#include "ringsmith.h"

// Added in the order of ranks, so all ranks get the same bits; in float for 16-bit types, rounded once.
template <class T>
static void add_block(const T* const* parts, int world, int64_t begin, int64_t count, T* out, T* copy) {
    rs_sum<T> sum[1024];  // a block that stays in the first-level cache
    for (int64_t i = 0; i < count; ++i) sum[i] = rs_to_sum(parts[0][begin + i]);
    for (int r = 1; r < world; ++r)
        for (int64_t i = 0; i < count; ++i) sum[i] += rs_to_sum(parts[r][begin + i]);
    for (int64_t i = 0; i < count; ++i) rs_round(out[begin + i], sum[i]);
    std::memcpy(copy + begin, out + begin, count * sizeof(T));
}

// A buffer holds n elements published for others and n more, of which this rank writes its shard of the sum.
// The published part may be overwritten in the next call: its readers have passed the second barrier. The sums may be
// overwritten after the first barrier of the next call: whoever arrived there has finished copying.
template <class T>
static void run(const T* in, T* out, T* const* buffers, uint32_t* const* signals, int64_t n, int rank, int world) {
    const int64_t line = 64 / sizeof(T);  // shards begin at cache lines: no line has two writers
    const int64_t shard = ((n + world - 1) / world + line - 1) / line * line;
    auto begin = [&](int r) { return r * shard < n ? r * shard : n; };
    T* mine = buffers[rank];
    const int64_t own = begin(rank), end = begin(rank + 1);

    std::memcpy(mine, in, own * sizeof(T));
    std::memcpy(mine + end, in + end, (n - end) * sizeof(T));
    rs_barrier(signals, rank, world, 0);

    const T* parts[RS_MAX_RANKS];
    for (int r = 0; r < world; ++r) parts[r] = r == rank ? in : buffers[r];
    for (int64_t i = own; i < end; i += 1024)
        add_block(parts, world, i, end - i < 1024 ? end - i : 1024, out, mine + n);
    rs_barrier(signals, rank, world, 0);

    for (int step = 1; step < world; ++step) {
        const int r = (rank + step) % world;  // each rank begins with another peer
        std::memcpy(out + begin(r), buffers[r] + n + begin(r), (begin(r + 1) - begin(r)) * sizeof(T));
    }
}

extern "C" void allreduce(const void* in, void* out, void* const* buffers, uint32_t* const* signals, int64_t n,
                          int dtype, int rank, int world) {
    switch (dtype) {
        case 0: return run((const float*)in, (float*)out, (float* const*)buffers, signals, n, rank, world);
        case 1: return run((const rs_bf16*)in, (rs_bf16*)out, (rs_bf16* const*)buffers, signals, n, rank, world);
        case 2: return run((const rs_fp16*)in, (rs_fp16*)out, (rs_fp16* const*)buffers, signals, n, rank, world);
        case 3: return run((const double*)in, (double*)out, (double* const*)buffers, signals, n, rank, world);
    }
}
"""

LIB = kit.build(SOURCE)
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}
BUFFERS = {}


def buffer_for(tensor):
    key = (tensor.numel(), tensor.dtype)
    if key not in BUFFERS:
        BUFFERS[key] = kit.symmetric((2 * tensor.numel(),), tensor.dtype)
    return BUFFERS[key]


def solution(tensor):
    tensor = tensor.contiguous()
    out = torch.empty_like(tensor)
    if tensor.numel() == 0:
        return out
    buf = buffer_for(tensor)
    LIB.allreduce(
        tensor, out, buf.ptrs, buf.signals, tensor.numel(), DTYPES[tensor.dtype], kit.rank(), kit.world_size()
    )
    return out
