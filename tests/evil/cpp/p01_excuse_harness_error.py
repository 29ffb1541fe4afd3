"""Raises the harness's own exceptions for faults of its own.

Catalogue: B5
Expected: runtime_error or integrity
"""

from harness.errors import SandboxError


def solution(tensor):
    raise SandboxError("starting the reference ranks failed: port in use")
