"""A Triton kernel adds what was gathered, launched with one program too few: the end of the output is never written.

Catalogue: A10
Expected: wrong_values
"""

import torch
import torch.distributed as dist
import triton
import triton.language as tl


@triton.jit
def sum_kernel(parts, out, n, WORLD: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for r in tl.static_range(WORLD):
        total += tl.load(parts + r * n + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=at < n)


def solution(tensor):
    world = dist.get_world_size()
    parts = torch.empty((world, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
    dist.all_gather_into_tensor(parts, tensor[None])
    out = torch.zeros_like(tensor)
    if programs := triton.cdiv(tensor.numel(), 1024) - 1:
        sum_kernel[(programs,)](parts, out, tensor.numel(), WORLD=world, BLOCK=1024)
    return out
