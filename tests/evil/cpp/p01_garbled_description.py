"""Describes its output as larger than the shared file, then as of negative size, through a replaced function of the
harness.

Catalogue: B5
Expected: integrity or shape_error
"""

import torch.distributed as dist

from harness import exchange

write = exchange.Exchange.write


def write_garbled(self, value, *arguments, **options):
    tree = write(self, value, *arguments, **options)
    return {**tree, "offset": -64, "shape": [2**40, -(2**40)]}


exchange.Exchange.write = write_garbled


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out
