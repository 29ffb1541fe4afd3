"""Cuts the files that outputs are handed over in to nothing, so that whoever reads them through a mapping dies.

Catalogue: B5, C4
Expected: integrity or runtime_error or shape_error
"""

import os
import re
import threading
import time
from pathlib import Path

import torch.distributed as dist


def truncate():
    for _ in range(500):
        for line in Path("/proc/self/maps").read_text().splitlines():
            found = re.search(r"\S*/outputs\.\d+$", line)
            if found and os.path.exists(found[0]):
                os.truncate(found[0], 0)
        for fd in os.listdir("/proc/self/fd"):
            try:
                if "outputs." in os.readlink(f"/proc/self/fd/{fd}"):
                    os.ftruncate(int(fd), 0)
            except OSError:
                pass
        time.sleep(0.001)


def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    threading.Thread(target=truncate, daemon=True).start()
    return out
