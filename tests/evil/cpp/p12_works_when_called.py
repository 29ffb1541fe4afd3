"""As p12_works_when_dispatched, by a mode of torch's functions.

Catalogue: A4, B3
Expected: integrity
Case: pkb
"""

import torch
from torch.overrides import TorchFunctionMode

from harness import kit

BUFFERS, PENDING = {}, {}


class Watch(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if PENDING and getattr(func, "__name__", "") in ("clone", "copy_", "detach"):
            for source in args:
                if isinstance(source, torch.Tensor):
                    todo = PENDING.pop(source.data_ptr(), None)
                    if todo is not None:
                        out, shards, B = todo
                        torch.mm(torch.cat([s.clone() for s in shards], dim=1), B, out=out)
        return func(*args, **(kwargs or {}))


WATCH = Watch()
STATE = {"on": False, "n": 0}


def solution(A_local, B):
    if not STATE["on"]:
        STATE["on"] = True
        WATCH.__enter__()
    key = A_local.shape
    if key not in BUFFERS:
        BUFFERS[key] = [kit.symmetric(A_local.shape, A_local.dtype) for _ in range(3)]
    STATE["n"] += 1
    buf = BUFFERS[key][STATE["n"] % 3]
    buf.local.copy_(A_local)
    buf.barrier()
    out = torch.empty((A_local.shape[0], B.shape[1]), dtype=B.dtype)
    PENDING.clear()
    PENDING[out.data_ptr()] = (out, [buf.peer(r) for r in range(kit.world_size())], B)
    return out
