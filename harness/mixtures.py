"""Statements on values that are made of the right parts: some left out or counted twice, all scaled, rows scaled."""

from __future__ import annotations

import math

import torch

from harness.part import FEW, MOST, RESIDUAL, Fact, Part, norm
from harness.regions import Region


def summed(part: Part) -> Fact | None:
    """One rank's part left out or counted twice, or alone: tested element by element, so a few are enough."""
    if not part.sources.additive:
        return None
    for rank, whole in enumerate(part.sources.parts):
        theirs = part.at(whole)
        if part.like(part.truth - theirs) >= MOST:
            return Fact("rank left out", "rank {peer}'s part is missing", peer=rank)
        if part.like(part.truth + theirs) >= MOST:
            return Fact("counted twice", "rank {peer}'s part is counted twice", peer=rank)
    mine = part.at(part.sources.parts[part.sources.rank])
    for times, words in (
        (1, "this rank's own part alone"),
        (part.sources.world_size, "this rank's own part times W"),
    ):
        if part.like(times * mine) >= MOST:
            return Fact("own data only", f"{words}: the other ranks' are missing (W: number of ranks)")
    for rank, whole in enumerate(part.sources.parts):
        if part.like(part.at(whole)) >= MOST:
            return Fact("one rank only", "rank {peer}'s part alone", peer=rank)
    return None


def combined(part: Part) -> Fact | None:
    """Some ranks' parts left out or counted more than once, or all scaled."""
    if not part.sources.additive:
        return None
    parts = [part.at(whole).reshape(-1) for whole in part.sources.parts]
    out = part.out.reshape(-1)
    size = max(norm(one) for one in parts)
    there = [k for k, one in enumerate(parts) if norm(one) > 1e-3 * size]
    if len(there) < 2 or out.numel() < max(FEW, 4 * len(there)) or not bool(out.isfinite().all()):
        return None
    columns = torch.stack([parts[k] for k in there], 1)
    weights = _fit(columns, out)
    residual = norm(columns @ weights - out) / max(norm(out), 1e-30)
    if residual > RESIDUAL or all(abs(float(w) - 1) < 0.02 for w in weights):
        return None
    found = dict(zip(there, (float(w) for w in weights), strict=True))
    evidence = (
        "fitted: " + " + ".join(f"{weight:.3g} x rank {k}'s part" for k, weight in found.items())
        + f", {residual:.1%} unexplained"
    )  # fmt: skip
    return _weights(found, part.sources.world_size, evidence)


def rows_of_parts(part: Part) -> list[tuple[Region, Fact]]:
    """Stretches of rows that add up differently from the ranks' parts; empty if that does not explain them all."""
    shape, parts = part.out.shape, part.sources.parts
    stepped = bool(part.index) and part.index[0].step not in (None, 1)
    if not part.sources.additive or part.out.dim() < 2 or stepped or not bool(part.out.isfinite().all()):
        return []
    rows = part.out.reshape(shape[0], -1)
    columns = torch.stack([part.at(whole).reshape(rows.shape) for whole in parts], -1)
    if rows.shape[1] < 4 * len(parts) or bool((columns.norm(dim=1) < 1e-3 * columns.norm(dim=1).max()).any()):
        return []
    weights = _fit(columns, rows)
    rest = (columns @ weights[..., None])[..., 0] - rows
    if bool((rest.norm(dim=1) > RESIDUAL * rows.norm(dim=1)).any()):
        return []
    rounded = (weights * 20).round() / 20
    starts = [0, *(i for i in range(1, len(rounded)) if not torch.equal(rounded[i], rounded[i - 1]))]
    if len(starts) > 2 * len(parts):
        return []
    first = part.index[0].start or 0
    found = []
    for start, end in zip(starts, [*starts[1:], len(rounded)], strict=True):
        mean = weights[start:end].mean(0)
        if bool(((mean - 1).abs() < 0.02).all()):
            continue
        index = (slice(first + start, first + end), *part.index[1:])
        region = Region(index, f"rows {first + start}..{first + end - 1}")
        fitted = {k: float(weight) for k, weight in enumerate(mean)}
        evidence = "fitted: " + " + ".join(f"{weight:.3g} x rank {k}'s part" for k, weight in fitted.items())
        found.append((region, _weights(fitted, part.sources.world_size, evidence)))
    return found


def scaled(part: Part) -> Fact | None:
    """All right but for one factor."""
    out, truth = part.out.reshape(-1), part.truth.reshape(-1)
    fine = out.isfinite() & truth.isfinite()
    out, truth = out[fine], truth[fine]
    if len(out) < 1 or norm(truth) == 0:
        return None
    by = float(out @ truth / (truth @ truth))
    residual = norm(out - by * truth) / max(norm(out), 1e-30)
    named = _ratio(by, part.sources.world_size) or _size(part, by)
    if len(out) < FEW and residual > 1e-3:
        return None
    if residual > RESIDUAL / 2 or abs(by - 1) < 0.01:
        return None
    text = f"{by:.4g} times what is right{f' ({named})' if named else ''}"
    # A few numbers are always some multiple.
    return Fact("scaled", text, f"{residual:.1%} unexplained", certain=named is not None or len(out) >= 4)


def row_factors(part: Part) -> Fact | None:
    """Every row right but for a factor of its own."""
    if part.out.dim() < 2 or part.out.shape[-1] < 8 or not bool(part.out.isfinite().all()):
        return None
    out, truth = (t.reshape(-1, t.shape[-1]) for t in (part.out, part.truth))
    factors = (out * truth).sum(1) / (truth * truth).sum(1).clamp_min(1e-300)
    rest = norm(out - factors[:, None] * truth)
    if len(out) < 2 or rest > min(RESIDUAL / 2 * norm(out), 0.3 * norm(out - truth)):
        return None
    low, middle, high = (float(f) for f in (factors.min(), factors.median(), factors.max()))
    named = _ratio(middle, part.sources.world_size)
    return Fact(
        "rows scaled",
        f"every row is what is right times a factor of its own, {low:.3g} to {high:.3g}, in the middle {middle:.3g}"
        f"{f' ({named})' if named else ''}: what rows are divided by is wrong (a norm, a mean, a sum of weights)",
    )


def _size(part: Part, by: float) -> str | None:
    """Whose size a factor is."""
    for size, whose in part.sources.sizes.items():
        for value, words in ((size, f"{size}, {whose}"), (1 / size, f"1/{size}, {whose}")):
            if abs(by - value) <= 1e-3 * value:
                return f"{words}: a sum where a mean is right, or the reverse"
    return None


def without(part: Part) -> Fact | None:
    """As if a rank's numbers were zero, where what ranks contribute is not simply added."""
    if part.sources.additive:
        return None
    own = part.sources.parts[part.sources.rank] if part.sources.parts else None
    if own is not None and own.shape == part.shape and part.like(part.at(own)) >= MOST:
        return Fact("own data only", "what is right if all other ranks' numbers were zero")
    for k, other in enumerate(part.sources.without):
        if other.shape == part.shape and part.like(part.at(other)) >= MOST:
            return Fact("rank left out", "what is right if rank {peer}'s numbers were zero", peer=k)
    return None


def offset(part: Part) -> Fact | None:
    """Off by something that is the same in every row: a bias, a mean."""
    if part.out.dim() < 2 or part.out.shape[-1] < 8 or not bool(part.out.isfinite().all()):
        return None
    off = (part.out - part.truth).reshape(-1, part.out.shape[-1])
    if len(off) < 4:
        return None
    usual = off.median(0).values
    if norm(off - usual) > RESIDUAL * norm(off) or norm(usual) == 0:
        return None
    if float(usual.std()) < 1e-3 * float(usual.mean().abs()):
        return Fact("offset", f"{float(usual.mean()):+.6g} beside what is right, everywhere")
    for name, tensor in part.sources.inputs[part.sources.rank] if part.sources.inputs else ():
        if tensor.shape == usual.shape and tensor.is_floating_point():
            given = tensor.to(usual)
            by = float(usual @ given / (given @ given).clamp_min(1e-30))
            if norm(usual - by * given) <= RESIDUAL * norm(usual):
                what = "left out" if abs(by + 1) < 0.05 else "added once too often" if abs(by - 1) < 0.05 else ""
                times = what or f"counted {1 + by:.3g} times"
                return Fact("offset", f"{name} ({list(tensor.shape)}) is {times}", f"every row is off by {by:.3g} x it")
    return Fact("offset", "every row is off by the same vector: a bias or a mean left out or added too often")


def _fit(columns: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Weights of the last axis's columns that come closest to the values, for each leading index. By the normal
    equations: columns are of about one size and independent, and there are millions of rows."""
    across = columns.transpose(-1, -2)
    return (torch.linalg.pinv(across @ columns) @ (across @ values[..., None]))[..., 0]


def _weights(found: dict[int, float], world_size: int, evidence: str) -> Fact:
    """What the weights of the ranks' parts say."""
    values = list(found.values())
    mean = sum(values) / len(values)
    if all(abs(value - mean) < 0.02 * max(1.0, abs(mean)) for value in values):
        named = _ratio(mean, world_size)
        return Fact("scaled", f"{mean:.4g} times what is right{f' ({named})' if named else ''}", evidence)
    out = [k for k, value in found.items() if abs(value) < 0.02]
    if len(out) + 1 == len(found):
        (only,) = set(found) - set(out)
        times = "" if abs(found[only] - 1) < 0.02 else f" {found[only]:.3g} times"
        return Fact(
            "one rank only", f"rank {{peer}}'s part{times} instead of the other ranks' parts", evidence, peer=only
        )
    said = [f"rank {k}'s part {_times(value)}" for k, value in found.items() if abs(value - 1) >= 0.02]
    return Fact("ranks left out" if out else "wrong weights", "; ".join(said), evidence)


def _times(value: float) -> str:
    return "is missing" if abs(value) < 0.02 else f"counts {value:.3g} times"


def _ratio(by: float, world_size: int) -> str | None:
    """What a factor probably stands for."""
    close = lambda other: abs(by - other) <= 0.005 * abs(other)  # noqa: E731
    named = {
        float(world_size): "the number of ranks: a sum where the mean is right, or added that often",
        1 / world_size: "1 / number of ranks: a mean where the sum is right",
        -1.0: "the sign",
        2.0: "twice",
        0.5: "half",
        math.sqrt(world_size): "square root of the number of ranks",
        1 / math.sqrt(world_size): "1 / square root of the number of ranks",
        float(world_size - 1): "number of ranks - 1",
    }
    return next((words for value, words in named.items() if value not in (0.0, 1.0) and close(value)), None)
