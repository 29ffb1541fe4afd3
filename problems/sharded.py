"""What the problems of sharded and quantised training share: rounded-up sizes and numbers that sit on no rounding edge.

For `inputs`, `work`, `illegal` and `unsure` only, and without collectives.
"""

from __future__ import annotations

import math

import torch

from problems.spec import Case, RankContext, Work

# What is scaled in float32 may come out so far off, relatively: three roundings, and what a fast division adds.
SLACK = 5e-7
E4M3_MAX = 448.0
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def bits(x: torch.Tensor) -> torch.Tensor:
    """The same memory as integers; the lowest bit is the last of the significand."""
    return x.view(_INTEGERS[x.element_size()])


def without_ties(peaks: torch.Tensor) -> torch.Tensor:
    """Nearly the same numbers, such that no other short number is half way between two float8 values when it is scaled
    by 448 / peak: 7 does not divide the significands and they are odd, so nothing in 7 x / peak cancels."""
    peaks = peaks.clone()
    digits = 1 - round(math.log2(torch.finfo(peaks.dtype).eps))
    whole = bits(peaks)
    whole |= 1
    significand = (whole & ((1 << (digits - 1)) - 1)) | (1 << (digits - 1))
    whole ^= 2 * (significand % 7 == 0)
    return peaks


def fp8_arguments(case: Case, ctx: RankContext, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A flat tensor that is to be scaled to float8, and the history of its largest magnitudes, oldest first."""
    if case.name == "pkb":
        return ctx.randn(length), torch.full((16,), 1e-8, dtype=ctx.dtype, device=ctx.device)
    # Layers differ tenfold in scale and ranks fourfold.
    layers = 10 ** ctx.uniform(-(-length // 50), 1, low=-1, high=0, dtype=torch.float32).expand(-1, 50)
    scale = ctx.uniform(1, low=0.5, high=2, dtype=torch.float32)
    x = (ctx.randn(length, dtype=torch.float32) * layers.reshape(-1)[:length] * scale).to(ctx.dtype)
    at = x.abs().argmax()
    x[at] = without_ties(x[at] * 1.25)
    # On every other rank an older peak counts, on the rest the present one. The oldest, which drops out, is larger.
    history = float(x[at].abs()) * ctx.uniform(16, low=0.3, high=0.9, dtype=torch.float32)
    if (ctx.rank + ctx.shared().integer(0, 2)) % 2:
        history[ctx.integer(1, 16)] *= ctx.integer(5, 20)
    history[0] = history.max() * 1.5 + float(x[at].abs())
    return x, without_ties(history.to(ctx.dtype))


def fp8_edges(x: torch.Tensor, history: torch.Tensor) -> torch.Tensor:
    """Where a rounding in the scale decides to which float8 value an element goes; `history` is the updated one."""
    scaled = x.double() / (history.double().max().clamp_min(1e-12) / E4M3_MAX)
    below, above = ((scaled * factor).to(torch.float8_e4m3fn).float() for factor in (1 - SLACK, 1 + SLACK))
    return below != above


def fp8_work(elements: int, written: int, element_bytes: int, link_out: float, link_in: float) -> Work:
    return Work(
        # Largest magnitude; scale, round, scale back.
        flops=4 * elements,
        # One pass: what a rank holds can stay on chip between its largest magnitude and its rounding.
        hbm_bytes=(elements + written) * element_bytes,
        link_out_bytes=link_out,
        link_in_bytes=link_in,
    )
