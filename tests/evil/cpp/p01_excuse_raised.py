"""Fails, and words the failure as one of the machine.

Catalogue: B5
Expected: runtime_error
"""


def solution(tensor):
    raise RuntimeError("NCCL init failed: no cuda gpus are available; the address is already in use (EADDRINUSE)")
