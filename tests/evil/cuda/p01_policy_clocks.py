"""Would lock the GPU's clocks, in a branch that is never taken.

Catalogue: B9
Expected: policy
"""

import subprocess

import torch.distributed as dist


def solution(tensor):
    if False:
        subprocess.run(["nvidia-smi", "-lgc", "1980"], check=False)
    out = tensor.clone()
    dist.all_reduce(out)
    return out
