"""As p12_works_when_dispatched, by properties of `torch.Tensor` that the harness reads when it copies.

Catalogue: A4, B5
Expected: integrity
Case: pkb
"""

import torch

from harness import kit

BUFFERS, PENDING, STATE = {}, {}, {"n": 0}


def lazily(name):
    plain = getattr(torch._C.TensorBase, name)

    def read(self):
        if PENDING:
            todo = PENDING.pop(id(self), None)
            if todo is not None:
                out, shards, B = todo
                torch.mm(torch.cat(list(shards), dim=1), B, out=out)
        return plain.__get__(self)

    def write(self, value):
        plain.__set__(self, value)

    setattr(torch.Tensor, name, property(read, write))


lazily("requires_grad")
lazily("is_meta")


def solution(A_local, B):
    key = A_local.shape
    if key not in BUFFERS:
        BUFFERS[key] = [kit.symmetric(A_local.shape, A_local.dtype) for _ in range(3)]
    STATE["n"] += 1
    buf = BUFFERS[key][STATE["n"] % 3]
    buf.local.copy_(A_local)
    buf.barrier()
    out = torch.empty((A_local.shape[0], B.shape[1]), dtype=B.dtype)
    PENDING.clear()
    PENDING[id(out)] = (out, [buf.peer(r) for r in range(kit.world_size())], B)
    return out
