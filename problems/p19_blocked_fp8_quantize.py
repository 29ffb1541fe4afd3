"""Quantisation to FP8 (E4M3) with one scale for each block of consecutive elements; all ranks get payload and scales.

How activations are made ready for FP8 products, block by block (DeepSeek-V3 style), before they are gathered.
"""

import torch
import torch.distributed as dist

from problems.spec import Arguments, Case, Problem, RankContext, Work

LARGEST = 448.0  # of float8_e4m3fn


def gathered(x: torch.Tensor) -> torch.Tensor:
    pieces = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, x)
    return torch.cat(pieces)


def reference(local_tensor: torch.Tensor, block_size: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    """local_tensor: (M, N) in the run's dtype, contiguous, different on every rank; block_size divides N.

    A block is block_size consecutive elements of a row. Some blocks are all zeros, and magnitudes differ by decades.
    For each block s = max|x| / 448 and y = x / s (x / 1 where s is 0) in float32 (float64 if x is), y then rounded to
    float8_e4m3fn, to nearest, ties to even. Where x / s lies within 2**-20 of a tie, either neighbour is right.
    Returns (y, s): y (W*M, N) in float8_e4m3fn, s (W*M, N/block_size) in float32 (float64 if x is), 0 for blocks of
    zeros; both hold all W ranks' rows in rank order, the same on every rank.
    """
    x = local_tensor.to(torch.promote_types(local_tensor.dtype, torch.float32))
    blocks = x.reshape(x.shape[0], -1, block_size)
    s = blocks.abs().amax(dim=-1) / LARGEST
    y = (blocks / torch.where(s == 0, 1.0, s)[..., None]).to(torch.float8_e4m3fn).reshape(x.shape)
    # NCCL and gloo move bytes.
    return gathered(y.view(torch.uint8)).view(torch.float8_e4m3fn), gathered(s)


def inputs(case: Case, ctx: RankContext) -> Arguments:
    m, n, block = case["m"], case["n"], case["block"]
    if case.name == "pkb":
        return ctx.randn(m, n), block
    count = m * n // block
    x = ctx.randn(count, block, dtype=torch.float32) * 10 ** ctx.uniform(count, 1, low=-3, high=2, dtype=torch.float32)
    # A quarter of the blocks have one element far above the others, and a twentieth (one at least) is all zeros.
    outlier = ctx.permutation(count)[: count // 4]
    x[outlier, ctx.integers(0, block, len(outlier))] *= 50
    x[ctx.permutation(count)[: max(1, count // 20)]] = 0
    return x.reshape(m, n).to(ctx.dtype), block


def unsure(oracle: tuple[torch.Tensor, torch.Tensor], local_tensor: torch.Tensor, block_size: int = 128) -> object:
    """Where the quotient is so close to a tie of E4M3 that s, the quotient or a reciprocal, rounded, may decide."""
    blocks = local_tensor.double().abs().reshape(-1, block_size)
    largest = blocks.amax(dim=1, keepdim=True)
    quotient = blocks * LARGEST / torch.where(largest == 0, 1.0, largest)
    # Three mantissa bits; below 2**-6 numbers are 2**-9 apart.
    step = torch.exp2((torch.frexp(quotient).exponent - 1).clamp_min(-6).double() - 3)
    to_tie = (quotient / step).frac().sub(0.5).abs() * step
    tied = (to_tie <= 2.0**-20 * quotient).reshape(local_tensor.shape)
    return gathered(tied.to(torch.uint8)).bool(), None


def work(case: Case, world_size: int, element_bytes: int) -> Work:
    elements = case["m"] * case["n"]
    # The payload has one byte for each element, scales are float32 at least.
    own = elements + elements // case["block"] * max(4, element_bytes)
    return Work(
        # Magnitude, maximum, quotient.
        flops=3 * elements,
        hbm_bytes=elements * element_bytes + world_size * own,
        # With multicast the own part leaves once; the others still arrive one by one.
        link_out_bytes=own if world_size > 1 else 0,
        link_in_bytes=(world_size - 1) * own,
    )


def illegal(case: Case, world_size: int) -> str | None:
    if case["n"] % case["block"]:
        return f"n={case['n']} is not a multiple of the block size {case['block']}"
    return None


PROBLEM = Problem(
    title="Quantise to FP8 in blocks, then gather payload and scales",
    family="tensor",
    source="DeepSeek-V3",
    tags=("fp8", "all_gather"),
    reference=reference,
    inputs=inputs,
    work=work,
    cases={
        "pkb": {"m": 1024, "n": 1024, "block": 128},
        "default": {"m": 1024, "n": 1024, "block": 128},
        # DeepSeek-V3's hidden size, 8192 tokens on each rank.
        "large": {"m": 8192, "n": 7168, "block": 128},
        "odd": {"m": 131, "n": 1248, "block": 96},
        "tiny": {"m": 6, "n": 64, "block": 16},
    },
    tolerance="rounding",
    repair="As published all blocks have nearly the same scale and none is zero: a constant passes for the scales, and "
    "dividing by zero goes unseen. Here blocks' magnitudes span five decades, and some have outliers or only zeros.",
    illegal=illegal,
    unsure=unsure,
)
