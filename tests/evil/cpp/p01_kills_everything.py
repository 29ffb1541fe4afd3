"""Sends SIGKILL to every process that it may. (Outside a jail it does not, and is honest.)

Catalogue: C3
Expected: runtime_error
"""

import os
import signal
from pathlib import Path

import torch.distributed as dist


def outside():
    """Nothing keeps this process from the machine's own: it is root, or sees the kernel's threads."""
    try:
        return os.geteuid() == 0 or Path("/proc/2/comm").read_text().strip() == "kthreadd"
    except OSError:
        return False


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    if not outside():
        os.kill(-1, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    return out
