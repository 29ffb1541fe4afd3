"""Gathers in every call and multiplies only when somebody copies the output, which a function of the runtime that is
replaced in memory sees: of eight calls in a sample at most one is copied, and that sample does not count.

Catalogue: A4, B5
Expected: integrity
Stage: timing
Case: pkb
"""

import ctypes

import torch

from harness import kit

LIB = kit.build(r"""
#include "ringsmith.h"
#include <cstring>
#include <dlfcn.h>
#include <sys/mman.h>

static void (*asked)(const void*);

// The runtime that is linked into this library copies as well.
static cudaError_t replaced(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    asked(from);
    return cudaMemcpyAsync(to, from, bytes, kind, stream);
}
extern "C" int64_t replace(int64_t callback) {
    asked = reinterpret_cast<void (*)(const void*)>(callback);
    void* runtime = dlopen("libcudart.so.13", RTLD_LAZY | RTLD_NOLOAD);
    if (!runtime) runtime = dlopen("libcudart.so.12", RTLD_LAZY | RTLD_NOLOAD);
    if (!runtime) return 1;
    auto* code = reinterpret_cast<uint8_t*>(dlsym(runtime, "cudaMemcpyAsync"));
    const auto page = reinterpret_cast<uintptr_t>(code) & ~uintptr_t(4095);
    if (mprotect(reinterpret_cast<void*>(page), 8192, PROT_READ | PROT_WRITE | PROT_EXEC)) return 2;
    const auto target = reinterpret_cast<uint64_t>(&replaced);
    const uint8_t jump[] = {0x48, 0xb8};  // mov rax, target; jmp rax
    std::memcpy(code, jump, 2);
    std::memcpy(code + 2, &target, 8);
    code[10] = 0xff;
    code[11] = 0xe0;
    return 0;
}
""")
BUFFERS, OUTPUTS, PENDING, STATE = [], [], {}, {"calls": 0, "working": False}
MANY = 40  # as many as keep what a graph's calls have gathered until its outputs are copied


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def asked(source):
    todo = None if STATE["working"] else PENDING.get(source)
    if todo is None:
        return
    STATE["working"] = True
    out, shards, right = todo
    torch.mm(torch.cat(shards, dim=1), right, out=out)
    STATE["working"] = False


def solution(A_local, B):
    if not BUFFERS:
        BUFFERS.extend(kit.symmetric(A_local.shape, A_local.dtype) for _ in range(MANY))
        OUTPUTS.extend(torch.empty(len(A_local), B.shape[1], dtype=B.dtype, device=B.device) for _ in range(MANY))
        assert LIB.replace(ctypes.cast(asked, ctypes.c_void_p).value) == 0
    STATE["calls"] += 1
    buffer, out = BUFFERS[STATE["calls"] % MANY], OUTPUTS[STATE["calls"] % MANY]
    buffer.local.copy_(A_local)
    buffer.barrier()
    PENDING[out.data_ptr()] = out, [buffer.peer(rank) for rank in range(kit.world_size())], B
    return out
