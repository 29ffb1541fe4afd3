"""Statements on what the wrong values of a region are. Each is tested against the actual numbers and holds for nearly
all wrong elements of the region, or it is not made. For the reference ranks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from harness import regions
from harness.diagnosis import AFTER
from harness.numerics import Judged
from harness.platforms import DIRTY
from harness.regions import Region
from harness.sources import Sources

MOST = 0.95
"""Share of a region's wrong elements for which a statement must hold."""
_RESIDUAL = 0.05
"""How much of the output, in RMS, a linear combination may leave unexplained."""
_RUN, _PROBES = 12, 12
"""A place is recognised by so many elements in a row; so many places of a region are looked for."""
_FEW = 64
"""With fewer elements a fit means nothing."""
_SAID = 120
"""Characters of a list of places."""
_FORMATS = (
    ("float8 (e5m2)", torch.float8_e5m2),
    ("float8 (e4m3)", torch.float8_e4m3fn),
    ("bfloat16", torch.bfloat16),
    ("float16", torch.float16),
)
_NOISE = ((3e-5, "float16"), (6e-4, "tf32 or float16 sums"), (6e-3, "bfloat16"), (2e-2, "int8"), (1e-1, "8-bit floats"))
"""Relative RMS error up to which it is typical of a format in between."""


@dataclass(frozen=True)
class Fact:
    """One statement on a region: `cause`, and `text`, which may have `{peer}` for a rank."""

    cause: str
    text: str
    evidence: str = ""
    certain: bool = True
    peer: int | None = None


@dataclass(frozen=True)
class _Origin:
    """A place in somebody's tensor."""

    name: str
    rank: int
    index: tuple[int, ...]


@dataclass
class Part:
    """A region of one output: what is there (`out`), what is right (`truth`), which elements are wrong, all float64."""

    raw: torch.Tensor
    out: torch.Tensor
    truth: torch.Tensor
    bad: torch.Tensor
    allowed: float
    region: Region | None
    sources: Sources

    @classmethod
    def of(cls, judged: Judged, raw: torch.Tensor, region: Region | None, sources: Sources) -> Part:
        index = region.index if region and region.index else ...
        return cls(
            raw=(torch.view_as_real(raw) if raw.is_complex() else raw)[index],
            out=judged.out.double()[index],
            truth=judged.truth.double()[index],
            bad=judged.bad[index],
            allowed=judged.bound.max_error,
            region=region,
            sources=sources,
        )

    def explain(self) -> Fact | None:
        """The first statement that holds."""
        if not bool(self.bad.any()):
            return None
        tests: tuple[Callable[[], Fact | None], ...] = (
            self._never_written, self._not_finite, self._constant, self._of_other_call, self._summed, self._own,
            self._of_peer, self._combined, self._scaled, self._row_factors, self._without, self._order,
            self._elsewhere, self._offset,
        )  # fmt: skip
        fact = next((fact for test in tests if (fact := test()) is not None), None)
        if fact is None or fact.evidence:
            return fact
        return replace(fact, evidence=f"true of at least {MOST:.0%} of the {int(self.bad.sum())} wrong elements there")

    # -- statements ----------------------------------------------------------------------------------------------------

    def _share(self, holds: torch.Tensor) -> float:
        """Of the wrong elements."""
        return float(holds[self.bad].double().mean())

    def _like(self, other: torch.Tensor) -> float:
        """Share of the wrong elements that are as `other` (of the region) has them."""
        return self._share((self.out - other).abs() <= self.allowed)

    def _never_written(self) -> Fact | None:
        bits = self.raw.contiguous().view(torch.uint8).reshape(*self.raw.shape, -1) if self.raw.dim() else None
        if bits is None or self.raw.dtype is torch.bool:
            return None
        filled = torch.stack([(bits == byte).all(-1) for byte in DIRTY]).any(0)
        if self.raw.element_size() == 1 or self._share(filled) < MOST:
            return None
        return Fact("never written", "never written", "still holds what the harness fills free memory with")

    def _not_finite(self) -> Fact | None:
        nan, infinite = self._share(self.out.isnan()), self._share(self.out.isinf())
        if nan >= MOST:
            given = any(bool(t.isnan().any()) for inputs in self.sources.inputs for _, t in inputs)
            known = "no input is NaN, and it is not what free memory is filled with: computed here"
            return Fact("NaN", "NaN where finite values are right", "" if given or not self.sources.inputs else known)
        if infinite >= MOST:
            return Fact("infinity", "infinite where finite values are right: an overflow")
        if nan + infinite >= MOST:
            return Fact(
                "NaN", "NaN or infinite where finite values are right: an overflow, then inf - inf or inf / inf"
            )
        return None

    def _constant(self) -> Fact | None:
        value = float(self.out[self.bad].median())
        if self._share(self.out == value) < MOST or self.bad.sum() < 4:
            return None
        if value == 0:
            return Fact("zero", "zero: never added to or copied to after it was cleared, or cleared afterwards")
        return Fact("constant", f"all {value:.6g}")

    def _of_other_call(self) -> Fact | None:
        """Values of one other call, or a mixture of several."""
        others = [(name, self._at(t)) for name, t in self.sources.others if t.shape == self.sources_shape]
        near = [(name, ((self.out - other).abs() <= self.allowed)[self.bad]) for name, other in others]
        for name, like in near:
            if float(like.double().mean()) >= MOST:
                return _other_call(name)
        if not near or float(torch.stack([like for _, like in near]).any(0).double().mean()) < MOST:
            return None
        said = [f"{float(like.double().mean()):.0%} those of {name}" for name, like in near if bool(like.any())]
        return Fact("torn", f"a mixture of other calls' values: {', '.join(said)}")

    def _own(self) -> Fact | None:
        """An input of a rank, as it is: of the output's shape, or filling the region."""
        mine = self.sources.rank
        if not self.sources.inputs or self.bad.sum() < 2:
            return None
        for rank in (mine, *(rank for rank in range(self.sources.world_size) if rank != mine)):
            for name, given in self.sources.inputs[rank]:
                if given.shape == self.sources_shape:
                    given = self._at(given)
                elif given.numel() == self.out.numel():
                    given = given.double().reshape(self.out.shape)
                else:
                    continue
                if self._like(given) >= MOST:
                    if rank == mine:
                        return Fact("own data", f"this rank's own {name}, as it is, instead of what belongs there")
                    return Fact("peer's data", f"rank {{peer}}'s {name}, which does not belong there", peer=rank)
        return None

    def _summed(self) -> Fact | None:
        """One rank's part left out or counted twice, or alone: tested element by element, so a few are enough."""
        if not self.sources.additive:
            return None
        for rank, whole in enumerate(self.sources.parts):
            part = self._at(whole)
            if self._like(self.truth - part) >= MOST:
                return Fact("rank left out", "rank {peer}'s part is missing", peer=rank)
            if self._like(self.truth + part) >= MOST:
                return Fact("counted twice", "rank {peer}'s part is counted twice", peer=rank)
        mine = self._at(self.sources.parts[self.sources.rank])
        for times, words in (
            (1, "this rank's own part alone"),
            (self.sources.world_size, "this rank's own part times W"),
        ):
            if self._like(times * mine) >= MOST:
                return Fact("own data only", f"{words}: the other ranks' are missing (W: number of ranks)")
        for rank, whole in enumerate(self.sources.parts):
            if self._like(self._at(whole)) >= MOST:
                return Fact("one rank only", "rank {peer}'s part alone", peer=rank)
        return None

    def _of_peer(self) -> Fact | None:
        """What is right elsewhere: on another rank, or in another chunk of this tensor."""
        rights = self.sources.rights
        for rank, right in enumerate(rights):
            if rank == self.sources.rank or right is None or right.shape != self.sources_shape:
                continue
            if self._like(self._at(right)) >= MOST:
                return Fact("another rank's", "what belongs to rank {peer}, its block of the result", peer=rank)
        if self.region is None or self.region.chunk is None:
            return self._halves()
        shape, axis, own = torch.Size(self.sources_shape), self.region.axis, self.region.chunk
        for rank, right in enumerate(rights):
            if right is None or right.shape != shape:
                continue
            for k in range(self.sources.world_size):
                piece = regions.chunk(shape, self.sources.world_size, axis, k)
                if (k != own or rank != self.sources.rank) and self._like(right[piece.index].double()) >= MOST:
                    whose = "" if rank == self.sources.rank else f" of rank {rank}'s output"
                    return Fact("misplaced", f"what belongs into chunk {{peer}}{whose}", peer=k)
        return None

    def _halves(self) -> Fact | None:
        for axis, size in enumerate(self.out.shape):
            # With two ranks that is a matter of chunks, and said so.
            if (
                size % 2 == 0
                and size
                and self.sources.world_size != 2
                and self._like(self.truth.roll(size // 2, axis)) >= MOST
            ):
                return Fact("halves swapped", f"the right values with the halves of axis {axis} swapped")
            if size > 2 and self._like(self.truth.flip(axis)) >= MOST:
                return Fact("reversed", f"the right values in reverse order along axis {axis}")
            for by in (1, -1):
                if size > 2 and size != self.sources.world_size and self._like(self.truth.roll(by, axis)) >= MOST:
                    return Fact("shifted", f"the right values shifted by {by:+d} along axis {axis}")
        return None

    def _combined(self) -> Fact | None:
        """Some ranks' parts left out or counted more than once, or all scaled."""
        if not self.sources.additive:
            return None
        parts = [self._at(part).reshape(-1) for part in self.sources.parts]
        out = self.out.reshape(-1)
        size = max(_norm(part) for part in parts)
        there = [k for k, part in enumerate(parts) if _norm(part) > 1e-3 * size]
        if len(there) < 2 or out.numel() < max(_FEW, 4 * len(there)) or not bool(out.isfinite().all()):
            return None
        columns = torch.stack([parts[k] for k in there], 1)
        weights = torch.linalg.lstsq(columns.cpu(), out[:, None].cpu(), driver="gelsd").solution[:, 0]
        residual = _norm(columns.cpu() @ weights - out.cpu()) / max(_norm(out), 1e-30)
        if residual > _RESIDUAL or all(abs(float(w) - 1) < 0.02 for w in weights):
            return None
        found = dict(zip(there, (float(w) for w in weights), strict=True))
        evidence = (
            "fitted: " + " + ".join(f"{weight:.3g} x rank {k}'s part" for k, weight in found.items())
            + f", {residual:.1%} unexplained"
        )  # fmt: skip
        return _weights(found, self.sources.world_size, evidence)

    def rows_of_parts(self) -> list[tuple[Region, Fact]]:
        """Stretches of rows that add up differently from the ranks' parts; empty if that does not explain them all."""
        shape, parts = self.out.shape, self.sources.parts
        if not self.sources.additive or self.out.dim() < 2 or not self.region or not bool(self.out.isfinite().all()):
            return []
        rows = self.out.reshape(shape[0], -1)
        columns = torch.stack([self._at(part).reshape(rows.shape) for part in parts], -1)
        if rows.shape[1] < 4 * len(parts) or bool((columns.norm(dim=1) < 1e-3 * columns.norm(dim=1).max()).any()):
            return []
        weights = torch.linalg.lstsq(columns.cpu(), rows[..., None].cpu(), driver="gelsd").solution[..., 0]
        rest = (columns.cpu() @ weights[..., None])[..., 0] - rows.cpu()
        if bool((rest.norm(dim=1) > _RESIDUAL * rows.cpu().norm(dim=1)).any()):
            return []
        rounded = (weights * 20).round() / 20
        starts = [0, *(i for i in range(1, len(rounded)) if not torch.equal(rounded[i], rounded[i - 1]))]
        if len(starts) > 2 * len(parts):
            return []
        first = self.region.index[0].start or 0 if self.region.index else 0
        found = []
        for start, end in zip(starts, [*starts[1:], len(rounded)], strict=True):
            mean = weights[start:end].mean(0)
            if bool(((mean - 1).abs() < 0.02).all()):
                continue
            index = (slice(first + start, first + end), *(self.region.index[1:] if self.region.index else ()))
            region = Region(index, f"rows {first + start}..{first + end - 1}")
            fitted = {k: float(weight) for k, weight in enumerate(mean)}
            evidence = "fitted: " + " + ".join(f"{weight:.3g} x rank {k}'s part" for k, weight in fitted.items())
            found.append((region, _weights(fitted, self.sources.world_size, evidence)))
        return found

    def _scaled(self) -> Fact | None:
        out, truth = self.out.reshape(-1), self.truth.reshape(-1)
        fine = out.isfinite() & truth.isfinite()
        out, truth = out[fine], truth[fine]
        if len(out) < 1 or _norm(truth) == 0:
            return None
        by = float(out @ truth / (truth @ truth))
        residual = _norm(out - by * truth) / max(_norm(out), 1e-30)
        named = _ratio(by, self.sources.world_size) or self._size(by)
        if len(out) < _FEW and (named is None or residual > 1e-3):
            return None
        if residual > _RESIDUAL / 2 or abs(by - 1) < 0.01:
            return None
        return Fact(
            "scaled", f"{by:.4g} times what is right{f' ({named})' if named else ''}", f"{residual:.1%} unexplained"
        )

    def _row_factors(self) -> Fact | None:
        """Every row right but for a factor of its own."""
        if self.out.dim() < 2 or self.out.shape[-1] < 8 or not bool(self.out.isfinite().all()):
            return None
        out, truth = (t.reshape(-1, t.shape[-1]) for t in (self.out, self.truth))
        factors = (out * truth).sum(1) / (truth * truth).sum(1).clamp_min(1e-300)
        rest = _norm(out - factors[:, None] * truth)
        if len(out) < 2 or rest > min(_RESIDUAL / 2 * _norm(out), 0.3 * _norm(out - truth)):
            return None
        low, middle, high = (float(f) for f in (factors.min(), factors.median(), factors.max()))
        named = _ratio(middle, self.sources.world_size)
        return Fact(
            "rows scaled",
            f"every row is what is right times a factor of its own, {low:.3g} to {high:.3g}, in the middle {middle:.3g}"
            f"{f' ({named})' if named else ''}: what rows are divided by is wrong (a norm, a mean, a sum of weights)",
        )

    def _size(self, by: float) -> str | None:
        """Whose size a factor is."""
        for size, whose in self.sources.sizes.items():
            for value, words in ((size, f"{size}, {whose}"), (1 / size, f"1/{size}, {whose}")):
                if abs(by - value) <= 1e-3 * value:
                    return f"{words}: a sum where a mean is right, or the reverse"
        return None

    def _without(self) -> Fact | None:
        """As if a rank's numbers were zero, where what ranks contribute is not simply added."""
        if self.sources.additive:
            return None
        own = self.sources.parts[self.sources.rank] if self.sources.parts else None
        if own is not None and own.shape == self.sources_shape and self._like(self._at(own)) >= MOST:
            return Fact("own data only", "what is right if all other ranks' numbers were zero")
        for k, other in enumerate(self.sources.without):
            if other.shape == self.sources_shape and self._like(self._at(other)) >= MOST:
                return Fact("rank left out", "what is right if rank {peer}'s numbers were zero", peer=k)
        return None

    def _order(self) -> Fact | None:
        """The right values in another order of axes, or of rows."""
        whole, shape = self.truth, self.truth.shape
        squeezed = [size for size in shape if size > 1]
        if 2 <= len(squeezed) <= 3:
            flat = whole.reshape(squeezed)
            for order in itertools.permutations(range(len(squeezed))):
                if order != tuple(range(len(squeezed))):
                    moved = flat.permute(order).reshape(shape)
                    if self._like(moved) >= MOST:
                        return Fact("transposed", f"the right values with axes in the order {list(order)}")
        parts = self.sources.world_size
        if len(shape) and shape[0] % parts == 0 and shape[0] > parts > 1:
            for first, words in (
                (parts, "interleaved by rank instead of one rank's after the other"),
                (shape[0] // parts, "one rank's after the other instead of interleaved"),
            ):
                moved = whole.reshape(first, shape[0] // first, -1).transpose(0, 1).reshape(shape)
                if self._like(moved) >= MOST:
                    return Fact("interleaved", f"the right rows {words}")
        return self._rows()

    def _rows(self) -> Fact | None:
        """Rows that are right, in another order."""
        if self.out.dim() < 2 or self.out.shape[0] in (1, 2, self.sources.world_size):  # chunks say it better
            return None
        out, truth = self.out.reshape(self.out.shape[0], -1), self.truth.reshape(self.out.shape[0], -1)
        if out.shape[1] < 4 or out.numel() > 1 << 24:
            return None
        draw = torch.randn(out.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(out.device)
        sums, order = (truth @ draw).sort()
        at = torch.searchsorted(sums, out @ draw).clamp(max=len(sums) - 1)
        before = (at - 1).clamp(min=0)
        near = torch.where((sums[at] - out @ draw).abs() <= (sums[before] - out @ draw).abs(), at, before)
        source = order[near]
        if self._like(truth[source].reshape(self.out.shape)) < MOST:
            return None
        runs = _runs(source.tolist())
        said = ", ".join(f"{_span(at, length)} has {_span(at_source, length)}" for at, at_source, length in runs[:6])
        if len(runs) * 2 <= len(source):
            return Fact("blocks in another order", f"the order of the blocks is not right: {said}")
        return Fact("rows in another order", f"right rows in wrong places: {said}")

    def _elsewhere(self) -> Fact | None:
        """Copied from inputs or from elsewhere in what is right, as found by searching for the values themselves."""
        places = self._places()
        if len(places) < 2:
            return None
        if (moved := self._displaced(places)) is not None:
            return moved
        whose = [(origin.name, origin.rank) for _, origin, _ in places]
        name, peer = max(set(whose), key=whose.count)
        if whose.count((name, peer)) < max(2, 0.8 * len(whose)):
            return None
        said = "; ".join(
            f"{list(here)} has its {list(origin.index)}" for here, origin, _ in places
            if (origin.name, origin.rank) == (name, peer)
        )  # fmt: skip
        if peer == self.sources.rank and name.startswith("argument"):
            return Fact("own data", f"this rank's own {name} instead", said[:_SAID])
        if name.startswith("argument"):
            return Fact("peer's data", f"values of rank {{peer}}'s {name}", said[:_SAID], peer=peer)
        return Fact("misplaced", f"values that belong elsewhere: {said[:_SAID]}")

    def _displaced(self, places: list[tuple[tuple[int, ...], _Origin, _Origin | None]]) -> Fact | None:
        """Taken from the right argument of the right rank, but from other places in it."""
        known = [(here, origin, right) for here, origin, right in places if right is not None]
        off = [
            (here, origin, right) for here, origin, right in known
            if (origin.name, origin.rank) == (right.name, right.rank) and origin.index != right.index
        ]  # fmt: skip
        if len(off) < max(2, 0.8 * len(places)):
            return None
        here, origin, right = off[0]
        return Fact(
            "wrong offset",
            f"taken from the right {origin.name} of the right rank, but from another place in it: an offset, a stride "
            "or a count of what comes before is wrong",
            f"{list(here)} has {list(origin.index)} of rank {origin.rank}'s, where {list(right.index)} belongs",
        )

    def _places(self) -> list[tuple[tuple[int, ...], _Origin, _Origin | None]]:
        """Of runs of wrong values that are found somewhere: their index here, where they come from, and where what
        belongs there would come from, if that is found too."""
        if self.raw.dim() == 0 or self.raw.shape[-1] < 4 or self.raw.numel() == 0:
            return []
        run = min(_RUN, self.raw.shape[-1])
        rows, right = (t.reshape(-1, t.shape[-1]) for t in (self.raw, self.truth.to(self.raw.dtype)))
        starts = self.bad.reshape(rows.shape)[:, : rows.shape[1] - run + 1].nonzero()
        found = []
        for i in torch.linspace(0, len(starts) - 1, min(_PROBES, len(starts))).long().tolist():
            row, column = (int(v) for v in starts[i])
            pattern = rows[row, column : column + run]
            origin = None if bool((pattern == pattern[0]).all()) else self._find(pattern)
            if origin is not None:
                here = _unravel(row * rows.shape[1] + column, self.raw.shape)
                found.append((here, origin, self._find(right[row, column : column + run])))
        return found

    def _find(self, pattern: torch.Tensor) -> _Origin | None:
        """Where a run of values stands: in this rank's inputs, in others', in what is right somewhere."""
        mine = self.sources.rank
        order = [mine, *(rank for rank in range(self.sources.world_size) if rank != mine)]
        pool = [(name, rank, t) for rank in order if rank < len(self.sources.inputs)
                for name, t in self.sources.inputs[rank]]  # fmt: skip
        pool += [("output", rank, right) for rank in order if rank < len(self.sources.rights)
                 and (right := self.sources.rights[rank]) is not None]  # fmt: skip
        for name, rank, tensor in pool:
            if tensor.numel() < len(pattern) or tensor.dtype.is_floating_point != pattern.dtype.is_floating_point:
                continue
            flat = tensor.reshape(-1)
            wanted = pattern.to(flat.dtype)
            hits = (flat[: len(flat) - len(wanted) + 1] == wanted[0]).nonzero()[:, 0]
            for j in range(1, len(wanted)):
                if not len(hits):
                    break
                hits = hits[flat[hits + j] == wanted[j]]
            if len(hits):
                return _Origin(name, rank, _unravel(int(hits[0]), tensor.shape))
        return None

    def _offset(self) -> Fact | None:
        """Off by something that is the same in every row: a bias, a mean."""
        if self.out.dim() < 2 or self.out.shape[-1] < 8 or not bool(self.out.isfinite().all()):
            return None
        off = (self.out - self.truth).reshape(-1, self.out.shape[-1])
        if len(off) < 4:
            return None
        usual = off.median(0).values
        if _norm(off - usual) > _RESIDUAL * _norm(off) or _norm(usual) == 0:
            return None
        if float(usual.std()) < 1e-3 * float(usual.mean().abs()):
            return Fact("offset", f"{float(usual.mean()):+.6g} beside what is right, everywhere")
        for name, tensor in self.sources.inputs[self.sources.rank] if self.sources.inputs else ():
            if tensor.shape == usual.shape and tensor.is_floating_point():
                given = tensor.to(usual)
                by = float(usual @ given / (given @ given).clamp_min(1e-30))
                if _norm(usual - by * given) <= _RESIDUAL * _norm(usual):
                    what = "left out" if abs(by + 1) < 0.05 else "added once too often" if abs(by - 1) < 0.05 else ""
                    times = what or f"counted {1 + by:.3g} times"
                    return Fact(
                        "offset", f"{name} ({list(tensor.shape)}) is {times}", f"every row is off by {by:.3g} x it"
                    )
        return Fact("offset", "every row is off by the same vector: a bias or a mean left out or added too often")

    # -- when nothing holds --------------------------------------------------------------------------------------------

    def unlike(self) -> Fact:
        fine = self.out.isfinite() & self.truth.isfinite()
        out, truth = self.out[fine], self.truth[fine]
        if len(out) < _FEW or _norm(out) == 0 or _norm(truth) == 0:
            return Fact("unknown", "like nothing that was tried", certain=False)
        agree = float(out @ truth) / (_norm(out) * _norm(truth))
        size = _norm(out) / _norm(truth)
        text = "unrelated to what is right" if abs(agree) < 0.1 else "partly right: terms are missing or others added"
        return Fact("unknown", text, f"correlation {agree:.2f}, size {size:.2f} times the right one", certain=False)

    # -- helpers -------------------------------------------------------------------------------------------------------

    @property
    def sources_shape(self) -> tuple[int, ...]:
        right = self.sources.rights[self.sources.rank] if self.sources.rights else None
        return tuple(right.shape) if right is not None else tuple(self.out.shape)

    def _at(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same region of a tensor of the output's shape."""
        index: Any = self.region.index if self.region and self.region.index else ...
        return tensor[index].double()


def imprecise(part: Part) -> Iterator[Fact]:
    """Right but for rounding, and what rounds so."""
    fine = part.out.isfinite() & part.truth.isfinite()
    out, truth = part.out[fine], part.truth[fine]
    if len(out) < 8 or _norm(truth) == 0:
        return
    error = out - truth
    relative = _norm(error) / _norm(truth)
    # Rounding errors hang together neither with what is right nor with each other.
    along = abs(float(error @ truth)) / (_norm(error) * _norm(truth) + 1e-30)
    drift = abs(float(error.mean())) * math.sqrt(len(error)) / (_norm(error) + 1e-30)
    if relative > 0.15 or max(along, drift) > 0.1 + 4 / math.sqrt(len(error)):
        return
    stored = part.raw[fine]
    for name, dtype in _FORMATS if part.raw.dtype in (torch.float32, torch.float64) else _FORMATS[:2]:
        if stored.is_floating_point() and bool((stored.to(dtype).to(stored.dtype) == stored).all()):
            yield Fact(
                "low precision", f"rounded to {name}", f"every value is a {name} number; relative error {relative:.2g}"
            )
            return
    typical = next((name for limit, name in _NOISE if relative <= limit), "something coarse")
    yield Fact(
        "low precision",
        f"close to what is right: a relative error of {relative:.2g}, as of {typical} or of a constant slightly wrong",
        certain=False,
    )  # fmt: skip


def _other_call(name: str) -> Fact:
    """Of wrong values that are right for another call."""
    if name.startswith(AFTER):
        return Fact("overtaken", f"what is right for {name}: the next call has overwritten it before it was read")
    return Fact("stale", f"what was right for {name}: kept since then, or read before this call had written it")


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


def _runs(source: list[int]) -> list[tuple[int, int, int]]:
    """Of a permutation of rows: (row, row that it holds, length) of stretches that are moved as one."""
    runs: list[tuple[int, int, int]] = []
    for row, held in enumerate(source):
        if row == held:
            continue
        if runs and (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]) == (row, held):
            runs[-1] = (*runs[-1][:2], runs[-1][2] + 1)
        else:
            runs.append((row, held, 1))
    return runs


def _span(first: int, length: int) -> str:
    return f"row {first}" if length == 1 else f"rows {first}..{first + length - 1}"


def _norm(values: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(values.double()))


def _unravel(index: int, shape: torch.Size) -> tuple[int, ...]:
    position: list[int] = []
    for size in reversed(shape):
        position.append(index % size)
        index //= size
    return tuple(reversed(position))
