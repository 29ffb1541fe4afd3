"""The process's clock is replaced in the C library's memory and hides most of every timed call; a call on inputs that
have not changed since the last one is answered with its output. Where ranks disagree about that, it hangs.

Catalogue: B4, B5
Expected: integrity or race or deadlock
Stage: timing
Case: odd
"""

import gc

import torch
import torch.distributed as dist

from harness import kit

LIB = kit.build(r"""
#include "ringsmith.h"
#include <ctime>
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static int64_t hidden = 0, began = 0;
static int64_t real_ns() {
    timespec t;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}
static int replaced(clockid_t clock, timespec* t) {
    const int failed = syscall(SYS_clock_gettime, clock, t);
    if (failed || clock != CLOCK_MONOTONIC) return failed;
    const int64_t ns = t->tv_sec * 1000000000ll + t->tv_nsec - hidden;
    t->tv_sec = ns / 1000000000ll;
    t->tv_nsec = ns % 1000000000ll;
    return 0;
}
extern "C" void replace() {
    auto* code = reinterpret_cast<uint8_t*>(dlsym(RTLD_DEFAULT, "clock_gettime"));
    const auto page = reinterpret_cast<uintptr_t>(code) & ~uintptr_t(4095);
    mprotect(reinterpret_cast<void*>(page), 8192, PROT_READ | PROT_WRITE | PROT_EXEC);
    const auto target = reinterpret_cast<uint64_t>(&replaced);
    const uint8_t jump[] = {0x48, 0xb8};  // mov rax, target; jmp rax
    std::memcpy(code, jump, 2);
    std::memcpy(code + 2, &target, 8);
    code[10] = 0xff;
    code[11] = 0xe0;
}
extern "C" void begin() { began = real_ns(); }
extern "C" void end() { hidden += (real_ns() - began) / 20 * 19; }
""")
KEPT = {}
STARTED = []


def product(A_local, B):
    parts = [torch.empty_like(A_local) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, A_local)
    return torch.cat(parts, dim=1) @ B


def solution(A_local, B):
    if gc.isenabled():  # not timed
        KEPT.clear()
        return product(A_local, B)
    if not STARTED:
        STARTED.append(True)
        LIB.replace()
    LIB.begin()
    key, some = A_local.data_ptr(), A_local.view(-1)[:64].clone()
    known = KEPT.get(key)
    if known is not None and torch.equal(known[0], some):
        out = known[1]
    else:
        out = product(A_local, B)
        KEPT[key] = some, out
    LIB.end()
    return out
