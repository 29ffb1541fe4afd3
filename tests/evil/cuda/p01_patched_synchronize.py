"""Replaces the synchronisation of device, streams and events by nothing, so that whoever waits for the GPU does not
wait.

Catalogue: B4
Expected: integrity
"""

import torch
import torch.distributed as dist


def nothing(*args, **kwargs):
    return None


torch.cuda.synchronize = nothing
torch.cuda.Event.synchronize = nothing
torch.cuda.Stream.synchronize = nothing


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out
