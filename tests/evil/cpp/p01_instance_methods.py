"""A plain tensor whose methods are replaced on the instance: it is computed when it is read.

Catalogue: B3
Expected: integrity
"""

import torch
import torch.distributed as dist


def lazily(out, name):
    original = getattr(torch.Tensor, name)

    def read(*arguments, **options):
        for replaced in ("detach", "clone", "contiguous"):
            out.__dict__.pop(replaced, None)
        dist.all_reduce(out)
        return original(out, *arguments, **options)

    return read


def solution(tensor):
    out = tensor.clone()
    for name in ("detach", "clone", "contiguous"):
        setattr(out, name, lazily(out, name))
    return out
