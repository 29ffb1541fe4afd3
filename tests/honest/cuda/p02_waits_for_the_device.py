"""Waits for the device before it returns, as careful code does: what the harness's host needs between calls shows in
every one of them.
"""

import torch
import torch.distributed as dist


def solution(tensor):
    out = torch.empty((dist.get_world_size(), *tensor.shape), dtype=tensor.dtype, device=tensor.device)
    dist.all_gather_into_tensor(out, tensor.contiguous())
    torch.cuda.synchronize()
    return out
