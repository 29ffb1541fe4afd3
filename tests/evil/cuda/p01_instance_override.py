"""A plain tensor whose own `clone`, `cpu` and `copy_` are replaced by functions that do the work when they are
called.

Catalogue: B3
Expected: integrity
"""

import torch
import torch.distributed as dist


def solution(tensor):
    out = tensor.clone()

    def late(name):
        def method(*args, **kwargs):
            if out.__dict__.pop("clone", None) is not None:
                dist.all_reduce(out)
            return getattr(torch.Tensor, name)(out, *args, **kwargs)

        return method

    for name in ("contiguous", "cpu", "detach", "clone"):
        setattr(out, name, late(name))
    return out
