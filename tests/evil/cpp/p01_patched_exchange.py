"""Returns its input's clone at once and replaces the harness's function that hands outputs over: the work is done
there, outside what is timed.

Catalogue: B5, B1
Expected: integrity
"""

import torch.distributed as dist

from harness import exchange

write = exchange.Exchange.write


def write_sum(self, value, *arguments, **options):
    dist.all_reduce(value)
    return write(self, value, *arguments, **options)


exchange.Exchange.write = write_sum


def solution(tensor):
    return tensor.clone()
