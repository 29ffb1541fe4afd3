"""Returns a subclass of Tensor that does the work when somebody reads it. A clock that never reads sees none of it.

Catalogue: B3
Expected: integrity
"""

import torch
import torch.distributed as dist

READS = {"detach", "clone", "copy_", "contiguous", "cpu", "to", "view", "numpy", "tolist"}


class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            if getattr(function, "__name__", "") in READS:
                for argument in args:
                    if isinstance(argument, Lazy) and not getattr(argument, "done", False):
                        argument.done = True
                        dist.all_reduce(torch.Tensor.as_subclass(argument, torch.Tensor))
            return function(*args, **(kwargs or {}))


def solution(tensor):
    return tensor.clone().as_subclass(Lazy)
