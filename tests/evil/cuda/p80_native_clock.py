"""The function that reads the time between two events is replaced in memory, and tells a quarter of it; a call with
inputs that have not changed since the last one is answered with its output. Where ranks disagree about that, it hangs.

Catalogue: B4, B5
Expected: integrity or race or deadlock
Stage: timing
Case: pkb
"""

import gc

import torch
import torch.distributed as dist

from harness import kit

LIB = kit.build(r"""
#include "ringsmith.h"
#include <cstring>
#include <dlfcn.h>
#include <sys/mman.h>

// The runtime that is linked into this library reads the same events.
static cudaError_t replaced(float* ms, cudaEvent_t start, cudaEvent_t end) {
    const cudaError_t error = cudaEventElapsedTime(ms, start, end);
    *ms /= 4;
    return error;
}
extern "C" int64_t replace() {
    void* runtime = dlopen("libcudart.so.13", RTLD_LAZY | RTLD_NOLOAD);
    if (!runtime) runtime = dlopen("libcudart.so.12", RTLD_LAZY | RTLD_NOLOAD);
    if (!runtime) return 1;
    auto* code = reinterpret_cast<uint8_t*>(dlsym(runtime, "cudaEventElapsedTime"));
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
KEPT = {}
STARTED = []


def normalised(scores, temperature, counted, iterations, group):
    q = (scores / temperature).to(torch.promote_types(scores.dtype, torch.float32)).exp_()
    samples = counted.clone()
    dist.all_reduce(samples, group=group)
    mass = q.sum()
    dist.all_reduce(mass, group=group)
    q /= mass
    for _ in range(iterations):
        sums = q.sum(dim=0, keepdim=True)
        dist.all_reduce(sums, group=group)
        q /= sums * q.shape[1]
        q /= q.sum(dim=1, keepdim=True) * samples
    return q.mul_(samples)


def solution(teacher_output, teacher_temp, n_masked_patches_tensor, n_iterations=3, group=None):
    given = teacher_output, teacher_temp, n_masked_patches_tensor, n_iterations, group
    if gc.isenabled():  # not timed
        KEPT.clear()
        return normalised(*given)
    if not STARTED:
        STARTED.append(LIB.replace())
        assert STARTED == [0], STARTED
    key, some = teacher_output.data_ptr(), teacher_output.view(-1)[:64].clone()
    known = KEPT.get(key)
    if known is not None and torch.equal(known[0], some):
        return known[1]
    KEPT[key] = some, normalised(*given)
    return KEPT[key][1]
