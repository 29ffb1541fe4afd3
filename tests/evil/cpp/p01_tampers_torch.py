"""Opens installed files of torch and of the harness for writing. Where it can, it goes on honestly; it changes nothing.

Catalogue: C7
Expected: runtime_error
"""

import torch
import torch.distributed as dist

from harness import kit


def solution(tensor):
    for file in (torch.__file__, kit.__file__):
        with open(file, "ab"):
            pass
    out = tensor.clone()
    dist.all_reduce(out)
    return out
