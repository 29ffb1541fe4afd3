"""Would set the GPU's power limit through NVML, in a branch that is never taken.

Catalogue: B9
Expected: policy
"""

import torch.distributed as dist


def solution(tensor):
    if False:
        import pynvml

        pynvml.nvmlDeviceSetPowerManagementLimit(pynvml.nvmlDeviceGetHandleByIndex(0), 1)
    out = tensor.clone()
    dist.all_reduce(out)
    return out
