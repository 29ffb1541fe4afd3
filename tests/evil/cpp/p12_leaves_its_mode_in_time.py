"""As p12_works_when_dispatched, by a mode that is on in timed blocks only, from the end of a call until a timer ends
it: who looks when all calls are done finds none.

Catalogue: A4, B3
Expected: integrity
Case: pkb
Stage: timing
"""

import gc
import signal

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness import kit

BUFFERS, PENDING, STATE = {}, {}, {"calls": 0, "mode": None}


def work(source):
    todo = PENDING.pop(source.untyped_storage().data_ptr(), None)
    if todo is not None:
        out, shards, right = todo
        torch.mm(torch.cat([shard.clone() for shard in shards], dim=1), right, out=out)


class Watch(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if PENDING and func is torch.ops.aten.copy_.default:
            work(args[1])
        return func(*args, **(kwargs or {}))


def leave(*_):
    if STATE["mode"] is not None and not torch._C._len_torch_dispatch_stack():  # at work
        signal.setitimer(signal.ITIMER_REAL, 0.001)
    elif STATE["mode"] is not None:
        STATE["mode"].__exit__(None, None, None)
        STATE["mode"] = None


def solution(A_local, B):
    leave()
    if not STATE["calls"]:
        signal.signal(signal.SIGALRM, leave)
        BUFFERS.update(enumerate(kit.symmetric(A_local.shape, A_local.dtype) for _ in range(3)))
    STATE["calls"] += 1
    buffer = BUFFERS[STATE["calls"] % 3]
    buffer.local.copy_(A_local)
    buffer.barrier()
    out = torch.empty((A_local.shape[0], B.shape[1]), dtype=B.dtype)
    PENDING.clear()
    PENDING[out.data_ptr()] = (out, [buffer.peer(rank) for rank in range(kit.world_size())], B)
    if gc.isenabled():
        work(out)
    else:
        STATE["mode"] = Watch()
        STATE["mode"].__enter__()
        signal.setitimer(signal.ITIMER_REAL, 0.001)
    return out
