"""Publishes its data again only if eight sampled elements have changed: whole new inputs are noticed, a sparse change
is not. Every rank takes part in both barriers, so ranks may decide differently.

Catalogue: A3
Expected: integrity or wrong_values
Case: odd
"""

import torch

from harness import kit

KEPT = {}


def solution(tensor):
    key = (tensor.shape, tensor.dtype)
    if key not in KEPT:
        KEPT[key] = [kit.symmetric(tensor.shape, tensor.dtype), None]
    buf, former = KEPT[key]
    flat = tensor.flatten()
    sample = flat[:: max(1, flat.numel() // 8)].tolist()
    if sample != former:
        buf.local.copy_(tensor)
        KEPT[key][1] = sample
    buf.barrier()
    out = torch.stack([buf.peer(r).float() for r in range(kit.world_size())]).sum(0).to(tensor.dtype)
    buf.barrier()
    return out
