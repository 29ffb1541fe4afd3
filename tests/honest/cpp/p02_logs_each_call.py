"""Trap: writes to stdout and stderr in each call. Right, because that is allowed, if slow."""

import sys

import torch
import torch.distributed as dist

STATE = {"calls": 0}


def solution(tensor):
    STATE["calls"] += 1
    print("call", STATE["calls"], tuple(tensor.shape))
    print("warning: nothing is wrong", file=sys.stderr)
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return torch.stack(parts)
