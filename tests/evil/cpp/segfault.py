"""Reads address 8: the process dies by SIGSEGV.

Catalogue: C5
Expected: runtime_error
"""

import ctypes


def solution(tensor):
    ctypes.string_at(8)
    return tensor
