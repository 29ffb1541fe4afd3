"""Statements on values that are right somewhere else: on another rank, in another place, in somebody's inputs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from harness import regions
from harness.numerics import unravel
from harness.part import MOST, Fact, Part

_RUN, _PROBES = 12, 12
"""A place is recognised by so many elements in a row; so many places of a region are looked for."""
_SAID = 120
"""Characters of a list of places."""


@dataclass(frozen=True)
class _Origin:
    """A place in somebody's tensor."""

    name: str
    rank: int
    index: tuple[int, ...]


def own(part: Part) -> Fact | None:
    """An input of a rank, as it is: of the output's shape, or filling the region."""
    mine = part.sources.rank
    if not part.sources.inputs or part.bad.sum() < 2:
        return None
    for rank in (mine, *(rank for rank in range(part.sources.world_size) if rank != mine)):
        for name, given in part.sources.inputs[rank]:
            if given.shape == part.shape:
                given = part.at(given)
            elif given.numel() == part.out.numel():
                given = given.double().reshape(part.out.shape)
            else:
                continue
            if part.like(given) >= MOST:
                if rank == mine:
                    return Fact("own data", f"this rank's own {name}, as it is, instead of what belongs there")
                return Fact("peer's data", f"rank {{peer}}'s {name}, which does not belong there", peer=rank)
    return None


def of_peer(part: Part) -> Fact | None:
    """What is right elsewhere: on another rank, or in another chunk of this tensor."""
    for number, sibling in part.sources.siblings:
        if part.like(part.at(sibling)) >= MOST:
            return Fact("outputs swapped", f"what is right for tensor {number} of the output, counted from 0")
    rights = part.sources.rights
    for rank, right in enumerate(rights):
        if rank == part.sources.rank or right is None or right.shape != part.shape:
            continue
        if part.like(part.at(right)) >= MOST:
            return Fact("another rank's", "what belongs to rank {peer}, its block of the result", peer=rank)
    if part.region.chunk is None or part.region.axis < 0 or part.thinned:
        return _halves(part)
    shape, axis, own = torch.Size(part.shape), part.region.axis, part.region.chunk
    for rank, right in enumerate(rights):
        if right is None or right.shape != shape:
            continue
        for k in range(part.sources.world_size):
            piece = regions.chunk(shape, part.sources.world_size, axis, k)
            if (k != own or rank != part.sources.rank) and part.like(right[piece.index].double()) >= MOST:
                whose = "" if rank == part.sources.rank else f" of rank {rank}'s output"
                return Fact("misplaced", f"what belongs into chunk {{peer}}{whose}", peer=k)
    return None


def _halves(part: Part) -> Fact | None:
    """The right values swapped, reversed or shifted along an axis."""
    for axis, size in enumerate(part.out.shape):
        # With two ranks that is a matter of chunks, and said so.
        if (
            size % 2 == 0
            and size
            and part.sources.world_size != 2
            and part.like(part.truth.roll(size // 2, axis)) >= MOST
        ):
            return Fact("halves swapped", f"the right values with the halves of axis {axis} swapped")
        if size > 2 and part.like(part.truth.flip(axis)) >= MOST:
            return Fact("reversed", f"the right values in reverse order along axis {axis}")
        for by in (1, -1):
            if size > 2 and size != part.sources.world_size and part.like(part.truth.roll(by, axis)) >= MOST:
                return Fact("shifted", f"the right values shifted by {by:+d} along axis {axis}")
    return None


def order(part: Part) -> Fact | None:
    """The right values in another order of axes, or of rows."""
    whole, shape = part.truth, part.truth.shape
    squeezed = [size for size in shape if size > 1]
    if 2 <= len(squeezed) <= 3:
        flat = whole.reshape(squeezed)
        for order in itertools.permutations(range(len(squeezed))):
            if order != tuple(range(len(squeezed))):
                moved = flat.permute(order).reshape(shape)
                if part.like(moved) >= MOST:
                    return Fact("transposed", f"the right values with axes in the order {list(order)}")
    parts = part.sources.world_size
    if len(shape) and shape[0] % parts == 0 and shape[0] > parts > 1:
        for first, words in (
            (parts, "interleaved by rank instead of one rank's after the other"),
            (shape[0] // parts, "one rank's after the other instead of interleaved"),
        ):
            moved = whole.reshape(first, shape[0] // first, -1).transpose(0, 1).reshape(shape)
            if part.like(moved) >= MOST:
                return Fact("interleaved", f"the right rows {words}")
    return _rows(part)


def _rows(part: Part) -> Fact | None:
    """Rows that are right, in another order."""
    if (
        part.thinned or part.out.dim() < 2 or part.out.shape[0] in (1, 2, part.sources.world_size)
    ):  # chunks say it better
        return None
    out, truth = part.out.reshape(part.out.shape[0], -1), part.truth.reshape(part.out.shape[0], -1)
    if out.shape[1] < 4 or out.numel() > 1 << 24:
        return None
    draw = torch.randn(out.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(out.device)
    sums, order = (truth @ draw).sort()
    at = torch.searchsorted(sums, out @ draw).clamp(max=len(sums) - 1)
    before = (at - 1).clamp(min=0)
    near = torch.where((sums[at] - out @ draw).abs() <= (sums[before] - out @ draw).abs(), at, before)
    source = order[near]
    if part.like(truth[source].reshape(part.out.shape)) < MOST:
        return None
    runs = _runs(source.tolist(), part.index[0].start or 0)
    said = ", ".join(f"{_span(at, length)} has {_span(at_source, length)}" for at, at_source, length in runs[:6])
    if len(runs) * 2 <= len(source):
        return Fact("blocks in another order", f"the order of the blocks is not right: {said}")
    return Fact("rows in another order", f"right rows in wrong places: {said}")


def elsewhere(part: Part) -> Fact | None:
    """Copied from inputs or from elsewhere in what is right, as found by searching for the values themselves."""
    found = _places(part)
    if len(found) < 2:
        return None
    if (moved := _displaced(found)) is not None:
        return moved
    whose = [(origin.name, origin.rank) for _, origin, _ in found]
    name, peer = max(set(whose), key=whose.count)
    if whose.count((name, peer)) < max(2, 0.8 * len(whose)):
        return None
    said = "; ".join(
        f"{list(here)} has its {list(origin.index)}" for here, origin, _ in found
        if (origin.name, origin.rank) == (name, peer)
    )  # fmt: skip
    if peer == part.sources.rank and name.startswith("argument"):
        return Fact("own data", f"this rank's own {name} instead", said[:_SAID])
    if name.startswith("argument"):
        return Fact("peer's data", f"values of rank {{peer}}'s {name}", said[:_SAID], peer=peer)
    return Fact("misplaced", f"values that belong elsewhere: {said[:_SAID]}")


def _displaced(places: list[tuple[tuple[int, ...], _Origin, _Origin | None]]) -> Fact | None:
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


def _places(part: Part) -> list[tuple[tuple[int, ...], _Origin, _Origin | None]]:
    """Of runs of wrong values that are found somewhere: their index here, where they come from, and where what
    belongs there would come from, if that is found too."""
    if part.raw.dim() == 0 or part.raw.shape[-1] < 4 or part.raw.numel() == 0:
        return []
    run = min(_RUN, part.raw.shape[-1])
    rows, right = (t.reshape(-1, t.shape[-1]) for t in (part.raw, part.truth.to(part.raw.dtype)))
    starts = part.bad.reshape(rows.shape)[:, : rows.shape[1] - run + 1].nonzero()
    found = []
    for i in torch.linspace(0, len(starts) - 1, min(_PROBES, len(starts))).long().tolist():
        row, column = (int(v) for v in starts[i])
        pattern = rows[row, column : column + run]
        origin = None if bool((pattern == pattern[0]).all()) else _find(part, pattern)
        if origin is not None:
            local = unravel(row * rows.shape[1] + column, part.raw.shape)
            here = tuple((s.start or 0) + at * (s.step or 1) for at, s in zip(local, part.index, strict=True))
            found.append((here, origin, _find(part, right[row, column : column + run])))
    return found


def _find(part: Part, pattern: torch.Tensor) -> _Origin | None:
    """Where a run of values stands: in this rank's inputs, in others', in what is right somewhere."""
    mine = part.sources.rank
    order = [mine, *(rank for rank in range(part.sources.world_size) if rank != mine)]
    pool = [(name, rank, t) for rank in order if rank < len(part.sources.inputs)
            for name, t in part.sources.inputs[rank]]  # fmt: skip
    pool += [("output", rank, right) for rank in order if rank < len(part.sources.rights)
             and (right := part.sources.rights[rank]) is not None]  # fmt: skip
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
            return _Origin(name, rank, unravel(int(hits[0]), tensor.shape))
    return None


def _runs(source: list[int], first: int) -> list[tuple[int, int, int]]:
    """Of a permutation of rows from `first` on: (row, row that it holds, length) of stretches that are moved as one."""
    runs: list[tuple[int, int, int]] = []
    for row, held in ((first + at, first + there) for at, there in enumerate(source)):
        if row == held:
            continue
        if runs and (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]) == (row, held):
            runs[-1] = (*runs[-1][:2], runs[-1][2] + 1)
        else:
            runs.append((row, held, 1))
    return runs


def _span(first: int, length: int) -> str:
    return f"row {first}" if length == 1 else f"rows {first}..{first + length - 1}"
