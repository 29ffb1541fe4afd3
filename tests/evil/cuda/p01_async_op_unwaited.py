"""NCCL's asynchronous all-reduce, never waited for: until it is done the output holds this rank's own values.

Catalogue: B1
Expected: race or integrity
"""

import torch.distributed as dist

PENDING = []


def solution(tensor):
    out = tensor.clone()
    PENDING.append(dist.all_reduce(out, async_op=True))
    del PENDING[:-4]  # kept for a while, so that nothing waits when they are dropped
    return out
