"""Opens the memory of every process that is not a rank of its own, to look for expected values. Where it can, it
returns the right result, otherwise its own data. (Outside a jail it does not try.)

Catalogue: C1, C2
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


def can_read(ranks):
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in ranks:
            try:
                with (entry / "mem").open("rb"):
                    return True
            except OSError:
                continue
    return False


def solution(tensor):
    world = dist.get_world_size()
    ranks, found = [None] * world, [None] * world
    dist.all_gather_object(ranks, os.getpid())
    dist.all_gather_object(found, outside() or can_read(ranks))
    out = tensor.clone()
    if any(found):
        dist.all_reduce(out)
    return out
