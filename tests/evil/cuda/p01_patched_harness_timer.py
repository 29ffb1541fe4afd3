"""Wraps the harness's own timing functions and divides what they return by three.

Catalogue: B5, B4
Expected: integrity
"""

import dataclasses

import torch.distributed as dist

from harness.platforms import cuda


def faster(real):
    def timer(*args, **kwargs):
        times = real(*args, **kwargs)
        return dataclasses.replace(times, times_us=[us / 3 for us in times.times_us])

    return timer


for name in ("time_eager", "time_device"):
    if hasattr(cuda.Cuda, name):
        setattr(cuda.Cuda, name, faster(getattr(cuda.Cuda, name)))


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out
