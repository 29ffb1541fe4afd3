"""Publishes its data again only if their sum, in steps of 64, has changed: cheap to have, blind to a change of a few
elements.

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
    mark = int(tensor.float().sum() / 64)
    if mark != former:
        buf.local.copy_(tensor)
        KEPT[key][1] = mark
    buf.barrier()
    out = torch.stack([buf.peer(r).float() for r in range(kit.world_size())]).sum(0).to(tensor.dtype)
    buf.barrier()
    return out
