"""Puts the name of a forbidden driver function together with the preprocessor: it is nowhere in the text, but in the
built library.

Catalogue: D12
Expected: policy
"""

import torch.distributed as dist

from harness import kit

SOURCE = r"""
#include <cstddef>
#define JOIN(a, b) a##b
#define NAME(a, b) JOIN(a, b)

extern "C" __attribute__((weak)) int NAME(cuMulti, castCreate)(void*, const void*);

extern "C" int there() { return NAME(cuMulti, castCreate) != NULL; }
"""

LIB = kit.build(SOURCE)


def solution(tensor):
    LIB.there()
    out = tensor.clone()
    dist.all_reduce(out)
    return out
