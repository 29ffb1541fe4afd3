"""Copies the peers' values by copy engine and adds them with a Triton kernel, which is compiled in the first call."""

import torch
import triton
import triton.language as tl

from harness import kit

BUFFERS = {}


@triton.jit
def sum_kernel(parts, out, n, WORLD: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for r in tl.static_range(WORLD):
        total += tl.load(parts + r * n + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=at < n)


def solution(tensor):
    world, key = kit.world_size(), (tensor.shape, tensor.dtype)
    if key not in BUFFERS:
        BUFFERS[key] = kit.symmetric(tuple(tensor.shape), tensor.dtype)
    buf = BUFFERS[key]
    parts = torch.empty((world, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
    buf.local.copy_(tensor)
    buf.barrier()
    for r in range(world):
        parts[r].copy_(buf.peer(r))
    buf.barrier()
    out = torch.empty_like(tensor)
    sum_kernel[(triton.cdiv(tensor.numel(), 1024),)](parts, out, tensor.numel(), WORLD=world, BLOCK=1024)
    return out
