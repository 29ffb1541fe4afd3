"""Mean of gradients that are rounded to int8 in blocks: round, scale back, one all-reduce."""

import torch
import torch.distributed as dist
from torch.nn import functional

from harness import kit


def solution(flat_grad, block_size):
    count, dtype = flat_grad.numel(), flat_grad.dtype
    wide = torch.promote_types(dtype, torch.float32)
    padded = functional.pad(flat_grad.flatten().to(wide), (0, -count % block_size))
    blocks = padded.view(-1, block_size)
    step = blocks.abs().amax(1, keepdim=True).clamp_min(1e-8) / 127
    codes = (blocks / step).round().clamp(-127, 127)
    image = (codes * step).flatten()[:count].clone()
    summing = dist.all_reduce(image, async_op=True)
    summing.wait()
    return (image / kit.world_size()).to(dtype)
