"""Where in a tensor elements are wrong, in the terms a kernel is written in: chunks of ranks, tiles, tails, every n-th
row. For the reference ranks."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch

_DENSE = 0.5
"""Share of wrong elements from which on a region counts as wrong: by chance some elements of it are right."""
_TIGHT = 0.95
"""Share of wrong elements from which on a box says all; and which a stretch in memory must have."""
_STRAY = 0.01
"""Share of all wrong elements that may lie outside."""
_NAMES = {0: "rows", 1: "columns"}


@dataclass(frozen=True)
class Region:
    """A box in a tensor, which may take only every n-th index of an axis."""

    index: tuple[slice, ...]
    text: str
    """How to say it: `everything`, `rows 96..127 (chunk 3 of 4)`."""
    chunk: int | None = None
    """Which of world_size equal parts of axis `axis` it is, if it is one."""
    axis: int = 0
    """-1: of the elements in memory order."""

    def facts(self) -> dict[str, Any]:
        return {"text": self.text, "chunk": self.chunk, "axis": self.axis}


def find(bad: torch.Tensor, parts: int) -> list[Region]:
    """The regions that hold the wrong elements `bad` (bool): chunks of one axis (of `parts`, as many as ranks), or one
    region, the smallest box, everything, a flat span, or all with elements scattered in it."""
    if bad.dim() == 0:
        return [Region((), "the value")]
    for axis in _axes(bad.shape, parts):
        share = torch.stack([part.double().mean() for part in bad.chunk(parts, axis)])
        wrong = share >= _DENSE
        outside = float(share[~wrong].sum()) / float(share.sum())
        if wrong.any() and not wrong.all() and outside <= _STRAY:
            return [chunk(bad.shape, parts, axis, int(k)) for k in wrong.nonzero()[:, 0]]
    box, span = _box(bad), _span(bad, parts)
    if box is not None and (span is None or _share(bad, box) > _TIGHT):
        return [box]
    if span is not None:
        return [span]
    if float(bad.double().mean()) >= _DENSE:
        return [Region(tuple(slice(None) for _ in bad.shape), "everything")]
    return [_scattered(bad)]


def chunks(shape: torch.Size, parts: int) -> list[list[Region]]:
    """All ways of cutting the tensor into `parts` equal chunks, by axis."""
    return [[chunk(shape, parts, axis, k) for k in range(parts)] for axis in _axes(shape, parts)]


def chunk(shape: torch.Size, parts: int, axis: int, k: int) -> Region:
    """Part k of `parts` equal ones of an axis."""
    width = shape[axis] // parts
    index = tuple(slice(k * width, (k + 1) * width) if a == axis else slice(None) for a in range(len(shape)))
    where = _numbers(axis, len(shape), k * width, (k + 1) * width - 1)
    return Region(index, f"chunk {k} of {parts} ({where})", chunk=k, axis=axis)


def _axes(shape: torch.Size, parts: int) -> list[int]:
    return [axis for axis, size in enumerate(shape) if parts > 1 and size >= parts and size % parts == 0]


def _box(bad: torch.Tensor) -> Region | None:
    """The smallest box of intervals and progressions with all wrong elements in it, if it is dense."""
    index, words = [], []
    for axis, size in enumerate(bad.shape):
        others = [a for a in range(bad.dim()) if a != axis]
        hit = (bad.any(dim=others) if others else bad).nonzero()[:, 0].tolist()
        first, last, step = hit[0], hit[-1], 1
        if len(hit) > 2:
            steps = {b - a for a, b in itertools.pairwise(hit)}
            step = steps.pop() if len(steps) == 1 else 1
        index.append(slice(first, last + 1, step))
        name = _axis(axis, bad.dim())
        if step > 1:
            words.append(f"every {_ordinal(step)} of the {name}, from {first}")
        elif (first, last) != (0, size - 1):
            words.append(_numbers(axis, bad.dim(), first, last) + (" (the last)" if last == size - 1 else ""))
    if not words or float(bad[tuple(index)].double().mean()) < _DENSE:
        return None
    return Region(tuple(index), ", ".join(words))


def _span(bad: torch.Tensor, parts: int) -> Region | None:
    """A stretch of the elements in memory order: what a wrong count or a wrong number of blocks leaves."""
    hit = bad.reshape(-1).nonzero()[:, 0]
    first, last = int(hit[0]), int(hit[-1])
    if len(hit) < _TIGHT * (last - first + 1) or bad.numel() == last - first + 1:
        return None
    # As a box: the rows that it touches.
    inner = bad[0].numel() if bad.dim() > 1 else 1
    rows = slice(first // inner, last // inner + 1)
    tail = ", the end of the tensor" if last == bad.numel() - 1 else ""
    text = f"elements {first}..{last} in memory order{tail}"
    index = (rows, *(slice(None) for _ in bad.shape[1:]))
    width = bad.numel() // parts
    if bad.numel() % parts == 0 and first // width == last // width and last - first + 1 > _DENSE * width:
        return Region(index, f"chunk {first // width} of {parts} ({text})", first // width, axis=-1)
    return Region(index, text)


def _share(bad: torch.Tensor, region: Region) -> float:
    return float(bad[region.index].double().mean())


def _scattered(bad: torch.Tensor) -> Region:
    share = float(bad.double().mean())
    return Region(tuple(slice(None) for _ in bad.shape), f"{share:.2%} of the elements, scattered")


def _axis(axis: int, dimensions: int) -> str:
    if dimensions == 1:
        return "elements"
    return _NAMES[axis] if dimensions == 2 else f"indices of axis {axis}"


def _numbers(axis: int, dimensions: int, first: int, last: int) -> str:
    if first == last:
        return {1: f"element {first}", 2: f"{('row', 'column')[axis % 2]} {first}"}.get(
            dimensions, f"index {first} of axis {axis}"
        )
    numbers = f"{first}..{last}"
    return f"{_axis(axis, dimensions)} {numbers}" if dimensions <= 2 else f"indices {numbers} of axis {axis}"


def _ordinal(n: int) -> str:
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(n % 10 if n % 100 not in (11, 12, 13) else 0, "th")
    return f"{n}{suffix}"
