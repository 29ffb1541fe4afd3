"""What the inputs of the graph problems share: power-law graphs, skewed ownership, ragged counts, exchanges.

For `inputs`, `work` and `illegal` only. A `reference` is shown to models on its own and must not import from here.
`common` is a context that draws the same on every rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from problems.spec import Case, RankContext

if TYPE_CHECKING:
    import torch


def clamp(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def id_bytes(count: int) -> int:
    """Whole bytes that tell `count` things apart: what an id costs on a link at least."""
    return max(1, -(-(count - 1).bit_length() // 8))


def degrees(common: RankContext, nodes: int, mean: int) -> torch.Tensor:
    """int64 (nodes,): a few hubs, many nodes with a handful of edges, some with none; about `mean` on average."""
    import torch

    weight = (1 + common.permutation(nodes)).to(torch.float64) ** -0.75
    share = weight * (mean * nodes / float(weight.sum()))
    spread = common.uniform(nodes, high=2, dtype=torch.float64)
    return (share * spread).long().clamp_max(max(nodes // 8, 1))


def owners(common: RankContext, nodes: int) -> torch.Tensor:
    """int64 (nodes,): each node's rank; some ranks own up to three times as many nodes as others."""
    import torch

    share = common.uniform(common.world_size, low=0.5, high=1.5, dtype=torch.float64)
    edges = (share / share.sum()).cumsum(0)
    drawn = common.uniform(nodes, dtype=torch.float64)
    return torch.searchsorted(edges, drawn).clamp_max(common.world_size - 1)


def hot_rows(ctx: RankContext, common: RankContext, rows: int, count: int) -> torch.Tensor:
    """int64 (count,) in [0, rows): a few rows are drawn again and again, and they are the same ones on every rank."""
    import torch

    offset = common.integer(0, rows)
    return ((ctx.uniform(count, dtype=torch.float64) ** 4 * rows).long() + offset) % rows


def covering(ctx: RankContext, rows: int, count: int) -> torch.Tensor:
    """int64 (count,) in [0, rows): as many different rows as there can be, in random order; then hot ones again. What
    the inverse of "unique" is before its places are shuffled."""
    import torch

    cover = ctx.permutation(rows)[:count]
    return torch.cat([cover, hot_rows(ctx, ctx, rows, count - len(cover))])


def ragged(common: RankContext, parts: int, total: int, empty: int = 0) -> list[int]:
    """Counts that add up to `total`, some several times as large as others and `empty` of them zero."""
    import torch

    weight = (0.7 * common.randn(parts, dtype=torch.float64)).exp()
    weight[common.permutation(parts)[:empty]] = 0
    ends = (weight.cumsum(0) / weight.sum() * total).round().long()
    counts: list[int] = ends.diff(prepend=ends.new_zeros(1)).tolist()
    return counts


def ragged_exchange(common: RankContext, rows: int) -> list[list[int]]:
    """How many rows rank s sends to rank d: `[s][d]`. Off the diagonal they are `rows` on average, exactly; on it too.
    From three ranks on some pairs exchange nothing."""
    world = common.world_size
    own = ragged(common, world, world * rows)
    pairs = world * (world - 1)
    others = iter(ragged(common, pairs, pairs * rows, empty=pairs // 6)) if pairs else iter(())
    return [[own[s] if s == d else next(others) for d in range(world)] for s in range(world)]


def mini_batch(case: Case, world_size: int) -> tuple[int, int]:
    """Rows for each pair of ranks and features of a row, as published where `m` and `n` are given."""
    if "m" in case.sizes:
        return clamp(case["m"] // world_size, 64, 1024), clamp(case["n"], 8, 128)
    return case["rows_per_pair"], case["features"]


def exchange(case: Case, ctx: RankContext) -> tuple[list[int], list[int]]:
    """(counts_received, counts_sent) of the cooperative feature exchange: rows that this rank sends to, and gets from,
    the rank at distance i. As published all are equal."""
    world, rank = ctx.world_size, ctx.rank
    rows, _ = mini_batch(case, world)
    if case.name == "pkb":
        return [rows] * world, [rows] * world
    counts = ragged_exchange(ctx.stream("exchange"), rows)
    peers = [(rank + i) % world for i in range(world)]
    return [counts[rank][peer] for peer in peers], [counts[peer][rank] for peer in peers]
