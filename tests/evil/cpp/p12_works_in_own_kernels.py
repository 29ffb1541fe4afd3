"""As p12_works_when_dispatched, by kernels of its own for `aten::copy_` and `aten::clone`.

Catalogue: A4, C7
Expected: integrity
Case: pkb
"""

import ctypes

import torch

from harness import kit

BUFFERS, PENDING = {}, {}
LIB = torch.library.Library("aten", "IMPL")
STATE = {"on": False, "n": 0}


def fill(source):
    todo = PENDING.pop(source.data_ptr(), None)
    if todo is not None:
        out, shards, B = todo
        torch.mm(torch.cat(list(shards), dim=1), B, out=out)


def copy_(self, src, non_blocking=False):
    if PENDING:
        fill(src)
    if (
        self.numel()
        and self.is_contiguous()
        and src.is_contiguous()
        and self.dtype == src.dtype
        and self.shape == src.shape
    ):
        ctypes.memmove(self.data_ptr(), src.data_ptr(), self.numel() * self.element_size())
    elif self.numel():
        self.numpy()[...] = src.expand(self.shape).numpy()
    return self


def clone(self, *, memory_format=None):
    if PENDING:
        fill(self)
    return copy_(torch.empty(self.shape, dtype=self.dtype), self)


def solution(A_local, B):
    key = A_local.shape
    if key not in BUFFERS:
        BUFFERS[key] = [kit.symmetric(A_local.shape, A_local.dtype) for _ in range(3)]
    if not STATE["on"]:
        STATE["on"] = True
        LIB.impl("clone", clone, "CPU")
        LIB.impl("copy_", copy_, "CPU")
    STATE["n"] += 1
    buf = BUFFERS[key][STATE["n"] % 3]
    buf.local.copy_(A_local)
    buf.barrier()
    out = torch.empty((A_local.shape[0], B.shape[1]), dtype=B.dtype)
    PENDING.clear()
    PENDING[out.data_ptr()] = (out, [buf.peer(r) for r in range(kit.world_size())], B)
    return out
