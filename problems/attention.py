"""What the inputs and work models of sequence- and context-parallel attention share: sizes, groups, score spread.

For `inputs`, `work` and `illegal` only. A `reference` is shown to models on its own and must not import from here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from problems.spec import Arguments, Case, RankContext, Subgroups

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Sizes:
    """Of one rank's (batch, seq, heads, head_dim)."""

    batch: int
    seq: int
    heads: int
    head_dim: int

    @property
    def tokens(self) -> int:
        return self.batch * self.seq

    @property
    def channels(self) -> int:
        return self.heads * self.head_dim

    @property
    def elements(self) -> int:
        return self.tokens * self.channels


def sizes(case: Case, world_size: int, seq_shards: int = 1) -> Sizes:
    """Published cases: m and n divided by 64 are batch and sequence, the latter divided once more by `seq_shards`; 8
    heads of 64. The others say `batch`, `seq`, `head_dim`, and `heads` or `heads_per_rank`."""
    if "m" in case.sizes:
        return Sizes(max(1, case["m"] // 64), max(1, max(1, case["n"] // 64) // seq_shards), 8, 64)
    heads = case["heads"] if "heads" in case.sizes else case["heads_per_rank"] * world_size
    return Sizes(case["batch"], case["seq"], heads, case["head_dim"])


def uneven_heads(case: Case, world_size: int) -> str | None:
    """Why the heads cannot be dealt out evenly, or None if they can."""
    heads = sizes(case, world_size).heads
    return f"{heads} heads do not divide evenly over {world_size} ranks" if heads % world_size else None


def varied(case: Case) -> bool:
    """Whether options that the benchmark never sets (mask, scale, trimming) are drawn per trial."""
    return case.name in ("odd", "tiny")


def padding(case: Case, ctx: RankContext) -> int:
    """Entries at the end of the whole sequence that only fill it up to a multiple of the ranks."""
    return ctx.shared().integer(0, ctx.world_size) if varied(case) else 0


def draw_causal(case: Case, ctx: RankContext, published: bool = True) -> bool:
    if varied(case):
        return bool(ctx.stream("causal").integer(0, 2))
    return published if case.name == "pkb" else True


def draw_scale(case: Case, ctx: RankContext, head_dim: int) -> float | None:
    """None (1/sqrt(head_dim)) as published, or a number."""
    factor = float(ctx.stream("scale").uniform(1, low=0.6, high=1.4).item())
    return factor * head_dim**-0.5 if varied(case) else None


def spread(keys: int) -> float:
    """Standard deviation of scores with which a few of so many keys get most of the weight, so that outputs do not
    average out to near nothing."""
    return math.sqrt(math.log(max(keys, 3)))


def pairs(seq: int, masked: bool) -> float:
    """Scores that count, per head, of a whole sequence."""
    return seq * (seq + 1) / 2 if masked else seq * seq


def maybe_causal(case: Case, published: bool = True) -> bool:
    """Whether `causal` is, or where it is drawn may be, set: what a floor has to suppose."""
    return case.name != "pkb" or published


def attention_flops(case: Case, size: Sizes, seq: int) -> float:
    """Of exact attention over a whole sequence of `seq`, all heads."""
    return 4 * size.batch * size.channels * pairs(seq, maybe_causal(case))


def layer_flops(case: Case, size: Sizes, shards: int) -> float:
    """Of an attention layer with its four projections, over a sequence in so many parts of `size`."""
    return 8 * shards * size.tokens * size.channels**2 + attention_flops(case, size, size.seq * shards)


def layer_options(case: Case, ctx: RankContext, size: Sizes, group: int) -> Arguments:
    """What follows the tensors in the arguments of an attention layer on two kinds of ranks: heads, scale, mask, the
    groups of `group` neighbours and those across them."""
    scale, causal = draw_scale(case, ctx, size.head_dim), draw_causal(case, ctx)
    return size.heads, scale, causal, neighbours(ctx.world_size, group), across(ctx.world_size, group)


def halves(world_size: int) -> tuple[int, int]:
    """(2, W/2), the published way of splitting the ranks between two kinds of parallelism; (1, W) for an odd number."""
    two = 1 if world_size % 2 else 2
    return two, world_size // two


def neighbours(world_size: int, size: int) -> Subgroups:
    """Groups of consecutive ranks: {0 .. size-1}, {size .. 2 size-1}, ..."""
    return Subgroups(tuple(tuple(range(at, at + size)) for at in range(0, world_size, size)))


def across(world_size: int, size: int) -> Subgroups:
    """Groups of one rank out of each group of `size` neighbours: {i, i+size, i+2 size, ...}."""
    return Subgroups(tuple(tuple(range(at, world_size, size)) for at in range(size)))


def projections(
    case: Case, ctx: RankContext, hidden: int, channels: int, keys: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """w_qkv (3 * channels, hidden) and w_o (hidden, channels) of an attention layer over so many keys: 0.02 N(0,1) as
    published, otherwise such that hidden states of unit size give peaked scores and outputs of about unit size, some
    channels larger than others as in trained models (which also tells cheaper formats from rounding)."""
    w_qkv, w_o = ctx.randn(3 * channels, hidden, dtype=ctx.wide), ctx.randn(hidden, channels, dtype=ctx.wide)
    if case.name == "pkb":
        w_qkv, w_o = 0.02 * w_qkv, 0.02 * w_o
    else:
        w_qkv, w_o = w_qkv * hidden**-0.5, w_o * hidden**-0.5
        w_o *= 10 ** ctx.uniform(hidden, 1, low=-0.5, high=0.5, dtype=ctx.wide)
        w_qkv[:channels] *= spread(keys)
    return w_qkv.to(ctx.dtype), w_o.to(ctx.dtype)


def draw_keys_and_values(case: Case, ctx: RankContext, size: Sizes) -> tuple[torch.Tensor, torch.Tensor]:
    """One rank's. Except as published, keys of a head are larger on some ranks, so that their blocks have very
    different log-sum-exps; which ranks' differs by head, so that nobody's part is negligible."""
    shape = size.batch, size.seq, size.heads, size.head_dim
    k, v = ctx.randn(*shape, dtype=ctx.wide), ctx.randn(*shape)
    if case.name != "pkb":
        k *= ctx.uniform(size.heads, 1, low=0.6, high=1.4, dtype=ctx.wide)
    return k.to(ctx.dtype), v


def draw_queries(case: Case, ctx: RankContext, size: Sizes, keys: int) -> torch.Tensor:
    q = ctx.randn(size.batch, size.seq, size.heads, size.head_dim, dtype=ctx.wide)
    return (q if case.name == "pkb" else q * spread(keys)).to(ctx.dtype)
