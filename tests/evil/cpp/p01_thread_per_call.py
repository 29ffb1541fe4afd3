"""The right result, but every call leaves a thread behind.

Catalogue: B2, C4
Expected: integrity
"""

import threading

import torch.distributed as dist

NEVER = threading.Event()


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    threading.Thread(target=NEVER.wait, args=(600,), daemon=True).start()
    return out
