"""Prints what a broken machine would print, and fails with the words of one.

Catalogue: C6
Expected: runtime_error
"""

import sys


def solution(tensor):
    for excuse in ("no cuda gpus are available", "NCCL WARN unhandled system error", "No space left on device"):
        print(excuse, file=sys.stderr, flush=True)
    raise RuntimeError("No CUDA GPUs are available")
