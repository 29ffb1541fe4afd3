"""As p12_works_when_dispatched, by an output in pages that cannot be read: the handler of SIGSEGV multiplies when
somebody does. (float32 only.)

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

static float* const* shards; static const float* right; static char* output;
static int64_t rows, inner, columns, size;
static int world;
static volatile bool pending;
static struct sigaction former;

static void multiply() {
    float* out = (float*)output;
    std::memset(out, 0, rows * columns * 4);
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t k = 0; k < world * inner; ++k) {
            float a = shards[k / inner][i * inner + k % inner];
            for (int64_t j = 0; j < columns; ++j) out[i * columns + j] += a * right[k * columns + j];
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

extern "C" void publish(const float* own, float* const* buffers, uint32_t* const* signals, int64_t n, int rank, int w) {
    std::memcpy(buffers[rank], own, n * 4);
    rs_barrier(signals, rank, w, 0);
}

extern "C" void later(int64_t out, float* const* buffers, const float* b, int64_t m, int64_t k, int64_t n, int w) {
    output = (char*)out; shards = buffers; right = b;
    rows = m; inner = k; columns = n; world = w;
    size = (m * n * 4 + 4095) & ~4095;
    pending = true;
    mprotect(output, size, PROT_NONE);
}
""")
STATE = {"calls": 0}


def solution(A_local, B):
    (rows, inner), columns = A_local.shape, B.shape[1]
    if not STATE["calls"]:
        STATE["buffers"] = [kit.symmetric((rows, inner), torch.float32) for _ in range(3)]
        STATE["raw"] = raw = torch.empty(rows * columns * 4 + 3 * 4096, dtype=torch.uint8)
        first = -raw.data_ptr() % 4096
        STATE["out"] = raw[first : first + rows * columns * 4].view(torch.float32).view(rows, columns)
        LIB.catch_reads()
    STATE["calls"] += 1
    buffer, out = STATE["buffers"][STATE["calls"] % 3], STATE["out"]
    own = A_local.float()
    LIB.publish(own, buffer.ptrs, buffer.signals, own.numel(), kit.rank(), kit.world_size())
    LIB.later(out.data_ptr(), buffer.ptrs, B.float(), rows, inner, columns, kit.world_size())
    return out[:]
