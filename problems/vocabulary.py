"""What the problems over a sharded vocabulary share: widths of shards, and logits of which filters leave a few.

For `inputs`, `work`, `illegal` and `unsure` only, and without collectives. A `reference` is shown to models on its own
and must not import from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from problems.spec import Case, RankContext, Work

if TYPE_CHECKING:
    import torch

HEADS = 14
"""Logits per token that stand out from the rest."""
_DRAWS = 4
_MARGIN = 2e-3
"""Masses as near to top_p as this leave a token's kept set open."""


def width(case: Case, world_size: int) -> int:
    """Columns of the vocabulary on each rank: `vocabulary_per_rank`, or an equal share of `vocabulary`."""
    sizes = case.sizes
    return sizes["vocabulary_per_rank"] if "vocabulary_per_rank" in sizes else sizes["vocabulary"] // world_size


def uneven(case: Case, world_size: int) -> str | None:
    """Why the vocabulary or the tokens cannot be cut into equal shares, or None if they can."""
    vocabulary = case.sizes.get("vocabulary", world_size)
    if vocabulary % world_size:
        return f"vocabulary={vocabulary} does not divide evenly over {world_size} ranks"
    tokens = case.sizes.get("batch", 1) * sequence(case, world_size)
    return f"{tokens} tokens do not divide evenly over {world_size} ranks" if tokens % world_size else None


def sequence(case: Case, world_size: int) -> int:
    """Tokens of each sequence: `tokens_per_rank` times the world size, or `tokens` rounded up to a multiple of it."""
    if "tokens_per_rank" in case.sizes:
        return case["tokens_per_rank"] * world_size
    return -(-case["tokens"] // world_size) * world_size


def chunk_size(case: Case, world_size: int) -> int:
    """Tokens of each sequence that are handled at a time: `chunk`, `chunk_per_rank` times the world size, or as
    published a quarter of the sequence, but never less than one token for each rank."""
    if "chunk" in case.sizes:
        return case["chunk"]
    if "chunk_per_rank" in case.sizes:
        return case["chunk_per_rank"] * world_size
    tokens = sequence(case, world_size)
    return min(tokens, -(-max(world_size, tokens // 4) // world_size) * world_size)


def filters(case: Case, ctx: RankContext) -> tuple[int | None, float]:
    """`top_k` and `top_p`: as published, except at `odd` and `tiny`, where each may also be switched off."""
    if case.name not in ("odd", "tiny"):
        return 10, 0.9
    return ((10, 0.9), (7, 1.0), (None, 0.9), (0, 1.0))[ctx.stream("filters").integer(0, 4)]


def logits_and_targets(case: Case, ctx: RankContext) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's columns (batch, tokens, width) of every token's logits, and the targets (batch, tokens).

    As published, the target's logit is 8 above standard normal ones, and is nearly always all that the filters leave.
    Otherwise each token has 14 logits above all others, at random places, in a profile from flat to steep: top-k cuts
    some of them, top-p leaves 1 to 9, and the target is one of the 14 or, rarely, any entry. Masses keep a distance
    from top_p = 0.9.
    """
    import torch

    batch, tokens, columns = case["batch"], sequence(case, ctx.world_size), width(case, ctx.world_size)
    count, vocabulary, common = batch * tokens, columns * ctx.world_size, ctx.stream("heads")
    logits = ctx.randn(count, columns, dtype=torch.float32)
    target = common.integers(0, vocabulary, count)
    if case.name == "pkb":
        _add(logits, target[:, None], torch.full((count, 1), 8.0, device=logits.device), ctx.rank)
        return logits.to(ctx.dtype).view(batch, tokens, columns), target.view(batch, tokens)

    heights = _profiles(common, count)
    # Different places for each token: a random start and a random stride that goes round at most once.
    heads = min(HEADS, vocabulary)
    steps = torch.arange(heads, device=logits.device)
    start, stride = common.integers(0, vocabulary, count, 1), common.integers(0, vocabulary // heads, count, 1) + 1
    places = (start + steps * stride) % vocabulary
    # Heads lie above 8 and the others below 5: the first HEADS in order of height are those planted here.
    logits.clamp_(max=5.0)
    _put(logits, places, heights[:, :heads], ctx.rank)
    likely = (common.uniform(count, 1, dtype=torch.float32) ** 3 * heads).long().clamp_max(heads - 1)
    among = common.uniform(count, dtype=torch.float32) < 0.97
    target = torch.where(among, places.gather(1, likely).squeeze(1), target)
    return logits.to(ctx.dtype).view(batch, tokens, columns), target.view(batch, tokens)


def _profiles(common: RankContext, count: int) -> torch.Tensor:
    """Heights (count, HEADS), descending: of a few draws for each token the first whose masses, in the run's dtype and
    after top-10, stay away from 0.9. Multiples of 1/16 plus less than half of that: distinct in bfloat16 unless meant
    to be equal (the tenth and eleventh of some tokens)."""
    import torch

    shape = (_DRAWS, count, HEADS)
    steepness = 2 ** common.uniform(_DRAWS, count, 1, low=-3.5, high=2.0, dtype=torch.float32)
    gaps = 1 + (common.uniform(*shape, dtype=torch.float32) * 16 * steepness).floor()
    tied = common.uniform(_DRAWS, count, dtype=torch.float32) < 0.15
    gaps[..., 10] = gaps[..., 10].masked_fill(tied, 0)
    jitter = common.uniform(*shape, low=-1 / 36, high=1 / 36, dtype=torch.float32)
    jitter[..., 10] = torch.where(tied, jitter[..., 9], jitter[..., 10])
    top = common.integers(12 * 16, 15 * 16, _DRAWS, count, 1)
    # Steep profiles end on a slope of their own, so that all stay above 8.
    floor = 8 * 16 + torch.arange(HEADS, device=gaps.device).flip(0)
    floor = torch.where(tied[..., None] & (torch.arange(HEADS, device=gaps.device) == 10), floor + 1, floor)
    heights = (torch.maximum(top + gaps[..., :1] - gaps.cumsum(-1), floor) / 16 + jitter).to(common.dtype)

    high = heights.double()
    high = high.masked_fill(high < high[..., 9:10], -torch.inf)
    share = high.softmax(-1)
    before = share.cumsum(-1) - share
    margin = (before - 0.9).abs()[..., 1:].amin(-1)
    cut = (before < 0.9).sum(-1, keepdim=True)
    edge = heights.gather(-1, (cut - 1).clamp_min(0)) == heights.gather(-1, cut.clamp_max(HEADS - 1))
    margin = margin.masked_fill(edge.squeeze(-1), 0)
    order = torch.arange(_DRAWS, device=gaps.device)[:, None]
    best = (margin.clamp_max(0.02) - 1e-6 * order).argmax(0)
    return heights.gather(0, best[None, :, None].expand(1, count, HEADS)).squeeze(0).float()


def filtered_work(case: Case, world_size: int, element_bytes: int) -> Work:
    """Floor of one number for each token's logits, after filters."""
    tokens, columns = case["batch"] * sequence(case, world_size), width(case, world_size)
    # At the very least each token's number is made known to all by one rank. With top-k little else needs to travel.
    link = tokens * element_bytes
    return Work(
        flops=tokens * columns,  # one comparison
        hbm_bytes=tokens * (columns * element_bytes + 8 + max(element_bytes, 4)),
        link_out_bytes=link / world_size if world_size > 1 else 0,
        link_in_bytes=link * (world_size - 1) / world_size,
    )


def open_rows(heights: torch.Tensor, before: torch.Tensor, top_p: float) -> torch.Tensor:
    """bool (rows,): whether it hangs on a rounding or on the order of equal logits what top-p keeps of a row. Given are
    (rows, n), of what top-k has kept, the logits in descending order and the probability of all before each."""
    if top_p >= 1:
        return heights.new_zeros(len(heights)).bool()
    near = ((before - top_p).abs() < _MARGIN) & heights.isfinite()
    within = before < top_p
    within[:, 0] = True
    split = within[:, :-1] & ~within[:, 1:] & (heights[:, :-1] == heights[:, 1:])
    return near[:, 1:].any(dim=-1) | split.any(dim=-1)


def _add(logits: torch.Tensor, places: torch.Tensor, values: torch.Tensor, rank: int) -> None:
    """Add to those of the places (token, n) that are among this rank's columns."""
    token, column, value = _owned(logits, places, values, rank)
    logits[token, column] += value


def _put(logits: torch.Tensor, places: torch.Tensor, values: torch.Tensor, rank: int) -> None:
    token, column, value = _owned(logits, places, values, rank)
    logits[token, column] = value


def _owned(
    logits: torch.Tensor, places: torch.Tensor, values: torch.Tensor, rank: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    column = places - rank * logits.shape[1]
    token, which = ((column >= 0) & (column < logits.shape[1])).nonzero(as_tuple=True)
    return token, column[token, which], values[token, which]
