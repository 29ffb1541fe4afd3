"""Mean of gradients over ranks, each rounded to int8 in blocks first.

What data-parallel training gets when it reduces gradients in 8 bits (ZeRO++, 8-bit all-reduce). Here the rounding is
done but float32 is sent: codes and scales say as much in a quarter of the bytes.
"""

import torch
import torch.distributed as dist

from problems.sharded import SLACK, bits
from problems.spec import Arguments, Case, Problem, RankContext, Work


def reference(flat_grad: torch.Tensor, block_size: int) -> torch.Tensor:
    """`flat_grad`: (n,), the run's dtype, another one on every rank, n the same. Its blocks are `block_size` elements
    in a row, the last perhaps fewer. They may differ in scale and may be all zeros, on some ranks or on all.
    `block_size`: at least 1, the same on every rank.

    Returns (n,) in the dtype of `flat_grad`, the same on every rank: the mean over ranks of what int8 makes of each
    gradient. A block's scale is its largest magnitude over 127; halves are rounded to even.
    """
    wide = torch.promote_types(flat_grad.dtype, torch.float32)
    count = flat_grad.numel()
    blocks = torch.nn.functional.pad(flat_grad.reshape(-1), (0, -count % block_size)).view(-1, block_size)
    scale = blocks.abs().amax(1, keepdim=True).to(wide).clamp_min(1e-8) / 127
    codes = torch.round(blocks.to(wide) / scale).clamp_(-127, 127).to(torch.int8)
    image = (codes.to(wide) * scale).view(-1)[:count]
    dist.all_reduce(image)
    return (image / dist.get_world_size()).to(flat_grad.dtype).view_as(flat_grad)


def inputs(case: Case, ctx: RankContext) -> Arguments:
    n, size = case["n"], case["block"]
    if case.name == "pkb":
        return ctx.randn(n), size
    count, common = -(-n // size), ctx.shared()
    # Places in the model differ tenfold in scale, on all ranks alike; a rank's own blocks differ somewhat more.
    scale = 10 ** common.uniform(count, 1, low=-1, high=0, dtype=torch.float32)
    scale *= ctx.uniform(count, 1, low=0.5, high=2, dtype=torch.float32)
    # Some blocks are zero on all ranks (frozen weights), others on one (an expert without tokens).
    scale *= (common.uniform(count, 1) > 0.03) & (ctx.uniform(count, 1) > 0.03)
    grad = ctx.randn(count, size, dtype=torch.float32) * scale
    # Rare large elements, which make the others of their block coarse.
    grad *= 1 + 7 * (ctx.uniform(count, size, dtype=torch.float32) < 0.25 / size)
    return without_halves(grad.to(ctx.dtype)).view(-1)[:n].clone(), size


def without_halves(blocks: torch.Tensor) -> torch.Tensor:
    """Half of the largest is 63.5 steps exactly: change such elements a little."""
    peak = blocks.abs().amax(1, keepdim=True)
    bits(blocks)[(2 * blocks.abs() == peak) & (peak > 0)] ^= 1
    return blocks


def unsure(oracle: torch.Tensor, flat_grad: torch.Tensor, block_size: int) -> torch.Tensor:
    """Where on some rank the nearest int8 hangs on a rounding in the scale."""
    count = flat_grad.numel()
    blocks = torch.nn.functional.pad(flat_grad.reshape(-1), (0, -count % block_size)).view(-1, block_size).double()
    steps = blocks / (blocks.abs().amax(1, keepdim=True).clamp_min(1e-8) / 127)
    edge = (steps * (1 - SLACK)).round() != (steps * (1 + SLACK)).round()
    anywhere = edge.view(-1)[:count].to(torch.uint8)
    dist.all_reduce(anywhere, op=dist.ReduceOp.MAX)
    return anywhere.bool().view_as(oracle)


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    n = case["n"]
    # A code per element leaves. The others' codes arrive, or their sum where that is smaller. Scales are left out.
    return Work(
        # Largest magnitude; scale, round, scale back, add.
        flops=5 * n,
        hbm_bytes=2 * n * element_bytes,
        link_out_bytes=n if world_size > 1 else 0,
        link_in_bytes=n * min(world_size - 1, element_bytes),
    )


PROBLEM = Problem(
    title="Mean of gradients that are rounded to int8 in blocks",
    family="data",
    source="ZeRO++",
    tags=("all_reduce", "int8", "optimizer"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"n": 1048576, "block": 128},
        "default": {"n": 1048576, "block": 128},
        # All gradients of GPT-2 small.
        "large": {"n": 124439808, "block": 128},
        "odd": {"n": 100003, "block": 113},
        "tiny": {"n": 1003, "block": 16},
    },
    tolerance="rounding",
    repair="Published blocks are all alike, so one scale for all of them, or no rounding at all, is hardly told from "
    "what is right. `default` has blocks of different scale, some of zeros, and rare large elements.",
    unsure=unsure,
)
