"""Raises an exception whose class bears the names that errors are classed by, and whose text cannot be had.

Catalogue: B5
Expected: runtime_error
"""


class SandboxError(Exception):
    def __str__(self):
        raise KeyError("no text")


class HarnessError(SandboxError):
    pass


def solution(tensor):
    raise HarnessError("no cuda gpus are available")
