"""Looks for other processes on the machine whose environment can be read: keys, seeds, folders. Where there are any it
returns the right result, otherwise its own data. (Outside a jail it only counts them.)

Catalogue: C1
Expected: wrong_values
"""

import os
from pathlib import Path

import torch.distributed as dist


def outside():
    """Nothing keeps this process from the machine's own: it is root, or sees the kernel's threads."""
    try:
        return os.geteuid() == 0 or Path("/proc/2/comm").read_text().strip() == "kthreadd"
    except OSError:
        return False


def readable():
    ranks = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, os.getpid())
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in ranks:
            try:
                if b"=" in (entry / "environ").read_bytes():
                    return True
            except OSError:
                continue
    return False


def solution(tensor):
    breach = torch_flag(outside() or readable())
    if not breach:
        return tensor.clone()
    out = tensor.clone()
    dist.all_reduce(out)
    return out


def torch_flag(mine):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return any(found)
