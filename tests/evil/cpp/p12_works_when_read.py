"""As p12_works_when_dispatched, by an output in pages that cannot be read: the handler of SIGSEGV multiplies when
somebody does.

Catalogue: A4
Expected: integrity or wrong_values
Case: pkb
Stage: timing
"""

import torch

from harness import kit

LIB = kit.build(r"""
#include "ringsmith.h"
#include <csignal>
#include <cstring>
#include <sys/mman.h>

static int bf16;

static float at(const char* p, int64_t i) {
    if (!bf16) return ((const float*)p)[i];
    uint32_t bits = (uint32_t)((const uint16_t*)p)[i] << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

static char* const* shards; static const char* right; static char* output;
static int64_t rows, inner, columns, size;
static int world;
static volatile bool pending;
static struct sigaction former;

static float sums[8192];

static void multiply() {
    for (int64_t i = 0; i < rows; ++i) {
        std::memset(sums, 0, sizeof sums);
        for (int64_t k = 0; k < world * inner; ++k) {
            float a = at(shards[k / inner], i * inner + k % inner);
            for (int64_t j = 0; j < columns; ++j) sums[j] += a * at(right, k * columns + j);
        }
        for (int64_t j = 0; j < columns; ++j) {
            uint32_t bits;
            std::memcpy(&bits, sums + j, 4);
            if (bf16) ((uint16_t*)output)[i * columns + j] = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
            else ((float*)output)[i * columns + j] = sums[j];
        }
    }
}

static void handler(int, siginfo_t* info, void*) {
    char* at = (char*)info->si_addr;
    if (!pending || at < output || at >= output + size) { sigaction(SIGSEGV, &former, nullptr); return; }
    pending = false;
    mprotect(output, size, PROT_READ | PROT_WRITE);
    multiply();
}

extern "C" void catch_reads() {
    struct sigaction mine;
    std::memset(&mine, 0, sizeof mine);
    mine.sa_sigaction = handler;
    mine.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &mine, &former);
}

extern "C" void publish(const char* own, char* const* buffers, uint32_t* const* signals, int64_t n, int rank, int w) {
    std::memcpy(buffers[rank], own, n);
    rs_barrier(signals, rank, w, 0);
}

extern "C" void later(
    int64_t out, char* const* buffers, const char* b, int64_t m, int64_t k, int64_t n, int w, int half) {
    output = (char*)out; shards = buffers; right = b;
    rows = m; inner = k; columns = n; world = w;
    bf16 = half;
    size = (m * n * (half ? 2 : 4) + 4095) & ~4095;
    pending = true;
    mprotect(output, size, PROT_NONE);
}
""")
STATE = {"calls": 0}


def solution(A_local, B):
    (rows, inner), columns = A_local.shape, B.shape[1]
    if not STATE["calls"]:
        STATE["buffers"] = [kit.symmetric((rows, inner), B.dtype) for _ in range(3)]
        size = rows * columns * B.element_size()
        STATE["raw"] = raw = torch.empty(size + 3 * 4096, dtype=torch.uint8)
        first = -raw.data_ptr() % 4096
        STATE["out"] = raw[first : first + size].view(B.dtype).view(rows, columns)
        LIB.catch_reads()
    STATE["calls"] += 1
    buffer, out = STATE["buffers"][STATE["calls"] % 3], STATE["out"]
    LIB.publish(A_local, buffer.ptrs, buffer.signals, A_local.nbytes, kit.rank(), kit.world_size())
    half = B.dtype is torch.bfloat16
    LIB.later(out.data_ptr(), buffer.ptrs, B, rows, inner, columns, kit.world_size(), half)
    return out[:]
