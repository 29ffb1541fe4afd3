"""Right for the first hundred calls. From then on, where outputs are so large that nobody keeps many copies, it fills
in only every other one.

Catalogue: A4
Expected: integrity or race
Stage: timing
Case: large
"""

import torch
import torch.distributed as dist

CALLS = 0


def solution(tensor):
    global CALLS
    CALLS += 1
    out = torch.empty_like(tensor)
    if CALLS < 100 or CALLS % 2:
        out.copy_(tensor)
        dist.all_reduce(out)
    return out
