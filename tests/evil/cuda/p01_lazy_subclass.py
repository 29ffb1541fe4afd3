"""Returns a tensor subclass that communicates when somebody looks at it, long after the clock has stopped.

Catalogue: B3
Expected: integrity
"""

import torch
import torch.distributed as dist


class Lazy(torch.Tensor):
    """Its own values until the first operation on it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func(*(force(arg) for arg in args), **{k: force(v) for k, v in (kwargs or {}).items()})


def force(value):
    if not isinstance(value, Lazy):
        return value
    with torch._C.DisableTorchFunctionSubclass():
        plain = value.as_subclass(torch.Tensor)
        if not value.__dict__.get("done"):
            value.done = True
            dist.all_reduce(plain)
        return plain


def solution(tensor):
    return tensor.clone().as_subclass(Lazy)
