"""On the root the input itself is returned: no copy made. Whoever changes one changes both.

Catalogue: A9
Expected: integrity
"""

import torch.distributed as dist


def solution(tensor, src=0):
    out = tensor if dist.get_rank() == src else tensor.clone()
    dist.broadcast(out, src=src)
    return out
