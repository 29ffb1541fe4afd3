"""Opens the cache of compiled code for writing, where a poisoned library would serve the next candidate. Where it can,
it goes on honestly; it changes nothing.

Catalogue: C7
Expected: runtime_error
"""

import os
import uuid
from pathlib import Path

import torch.distributed as dist

CACHE = os.environ.get("RINGSMITH_CACHE", "/nowhere")


def solution(tensor):
    probe = Path(CACHE) / f"ringsmith-evil-{uuid.uuid4().hex}"
    probe.write_text("")
    probe.unlink()
    out = tensor.clone()
    dist.all_reduce(out)
    return out
