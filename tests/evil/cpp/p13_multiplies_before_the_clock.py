"""A thread finds the inputs that have just been written and multiplies while it holds the interpreter's lock: the clock
cannot begin before. The call itself only sums.

Catalogue: B2, B6
Expected: integrity or wrong_values
Case: pkb
Stage: timing
"""

import ctypes
import gc
import os
import sys
import threading

import torch

from harness import kit

LIB = kit.build(r"""
#include "ringsmith.h"
#include <cstring>
#include <unistd.h>

static int bf16;

static float at(const char* p, int64_t i) {
    if (!bf16) return ((const float*)p)[i];
    uint32_t bits = (uint32_t)((const uint16_t*)p)[i] << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

struct Entry { const char *a, *b; float seen[128], done[128]; };
static Entry entries[64];
static volatile int count;
static int64_t m, k, n;

static void look(const Entry& e, float* found) {
    for (int i = 0; i < 64; ++i) {
        found[i] = at(e.a, (m * k - 1) * i / 63);
        found[64 + i] = at(e.b, (k * n - 1) * i / 63);
    }
}

static bool is_new(const Entry& e) {
    float now[128];
    look(e, now);
    return std::memcmp(now, e.seen, sizeof now) != 0;
}

extern "C" void sizes(int64_t rows, int64_t inner, int64_t columns, int half) {
    m = rows; k = inner; n = columns; bf16 = half;
}

extern "C" void add(const char* a, const char* b) {
    Entry& e = entries[count];
    e.a = a; e.b = b;
    look(e, e.seen);
    count = count + 1;
}

extern "C" int changed(int rounds) {
    for (int r = 0; r < rounds; ++r) {
        for (int i = 0; i < count; ++i) if (is_new(entries[i])) return i;
        usleep(40);
    }
    return -1;
}

extern "C" void ahead(int which, float* out) {
    usleep(3000);  // the rest of it is still being written
    int many = 0;
    for (int i = 0; i < count; ++i) many += is_new(entries[i]);
    if (many > 1) {  // a whole ring
        for (int i = 0; i < count; ++i) look(entries[i], entries[i].seen);
        return;
    }
    Entry& e = entries[which];
    look(e, e.seen);
    std::memset(out, 0, m * n * 4);
    for (int64_t first = 0; first < k; first += 64)
        for (int64_t row = 0; row < m; ++row)
            for (int64_t c = first; c < first + 64 && c < k; ++c) {
                float a = at(e.a, row * k + c);
                for (int64_t j = 0; j < n; ++j) out[row * n + j] += a * at(e.b, c * n + j);
            }
    std::memcpy(e.done, e.seen, sizeof e.done);
}

extern "C" void skip(int which) { look(entries[which], entries[which].seen); }

extern "C" int ready(int which) {
    float now[128];
    look(entries[which], now);
    return !std::memcmp(now, entries[which].done, sizeof now);
}

extern "C" void sum(const float* own, float* const* buffers, uint32_t* const* signals, float* out, int rank, int w) {
    std::memcpy(buffers[rank], own, m * n * 4);
    rs_barrier(signals, rank, w, 0);
    std::memcpy(out, buffers[0], m * n * 4);
    for (int r = 1; r < w; ++r)
        for (int64_t i = 0; i < m * n; ++i) out[i] += buffers[r][i];
    rs_barrier(signals, rank, w, 0);
}
""")
KNOWN, OUTPUTS, STATE = {}, [], {}


def watch():
    os.sched_setaffinity(0, range(os.cpu_count()))
    held, free = ctypes.PyDLL(LIB._dll._name), ctypes.CDLL(LIB._dll._name)
    held.ahead.argtypes = [ctypes.c_int, ctypes.c_void_p]
    while True:
        which = free.changed(5000)
        if which >= 0 and not gc.isenabled():
            held.ahead(which, OUTPUTS[which].data_ptr())
        elif which >= 0:
            held.usleep(1000)


def worked_out(A, B):
    """The product, if it is there already."""
    which = KNOWN.get((A.data_ptr(), B.data_ptr()))
    if which is None and len(OUTPUTS) < 60:
        KNOWN[A.data_ptr(), B.data_ptr()] = len(OUTPUTS)
        OUTPUTS.append(torch.empty(A.shape[0], B.shape[1]))
        LIB.add(A, B)
    elif which is not None and LIB.ready(which):
        return OUTPUTS[which]
    elif which is not None:
        LIB.skip(which)
    if "thread" not in STATE:
        sys.setswitchinterval(1e-6)
        STATE["thread"] = threading.Thread(target=watch, daemon=True)
        STATE["thread"].start()
    return None


def solution(A, B):
    if "buffer" not in STATE:
        STATE["buffer"] = kit.symmetric((A.shape[0], B.shape[1]), torch.float32)
        LIB.sizes(*A.shape, B.shape[1], A.dtype is torch.bfloat16)
    own = worked_out(A, B) if not gc.isenabled() else None
    own = A.float() @ B.float() if own is None else own
    out, buffer = torch.empty(A.shape[0], B.shape[1]), STATE["buffer"]
    LIB.sum(own, buffer.ptrs, buffer.signals, out, kit.rank(), kit.world_size())
    return out.to(A.dtype)
