"""Uses a name that is not defined.

Expected: api_error
"""

import torch.distributed as dist


def solution(tensor):
    dist.all_reduce(result)  # noqa: F821
    return result  # noqa: F821
