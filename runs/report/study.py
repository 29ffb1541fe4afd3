"""The runs of a report, grouped by how they were led, and what counts as a success in it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from runs.loading import described, load, planned
from runs.rows import ProblemKey, Row, Success

_NAMED = (
    "model", "strategy", "suite", "platform", "world_size", "dtype", "backend", "protocol", "check", "collectives",
    "timing", "trials", "isolation", "context_tokens", "budget", "target",
)  # fmt: skip
"""Fields of a `RunConfig` that make a configuration, the most telling first. Those that differ are in its label."""


@dataclass(frozen=True)
class Group:
    """All runs of one configuration."""

    label: str
    rows: tuple[Row, ...]
    """Faults and unfinished ones too."""

    @property
    def samples(self) -> list[Row]:
        return [row for row in self.rows if row.outcome == "sample"]


@dataclass(frozen=True)
class Study:
    title: str
    groups: tuple[Group, ...]
    problems: tuple[ProblemKey, ...]
    """All that were to be tried: what shares are of."""
    names: dict[ProblemKey, tuple[str, str]]
    """Name and family."""
    unreadable: tuple[str, ...]
    fast: Success
    """fast_1, as this report counts it."""
    ks: tuple[int, ...]
    """Ascending; 1 is among them."""

    @cached_property
    def rows(self) -> list[Row]:
        return [row for group in self.groups for row in group.rows]

    @property
    def fast_name(self) -> str:
        """`fast1`, or with another p."""
        return f"fast{self.fast.p:g}"

    def label_of(self, row: Row) -> str:
        return self._labels[row.path]

    def anchor(self, row: Row) -> str:
        """The id of the run's line in a page."""
        return self._anchors[row.path]

    @cached_property
    def _labels(self) -> dict[str, str]:
        return {row.path: group.label for group in self.groups for row in group.rows}

    @cached_property
    def _anchors(self) -> dict[str, str]:
        return {row.path: f"run-{number}" for number, row in enumerate(self.rows, start=1)}


def study(
    paths: Sequence[Path],
    *,
    fast: Success | None = None,
    ks: Sequence[int] = (),
    title: str = "",
    by_path: bool = False,
    processes: int = 1,
) -> Study:
    """Raises UsageError for a path without runs. `ks` empty: 1 and the usual number of samples of a problem. `by_path`:
    runs of different paths are different configurations (two versions of Ringsmith, or of its prompts)."""
    fast = fast or Success(p=1.0)
    if any(k < 1 for k in ks):
        raise UsageError("k is at least 1")
    loaded = load(paths, processes)
    if not loaded.rows:
        raise UsageError(f"no run can be read: {loaded.unreadable[0]}")
    problems = planned(paths, loaded.rows)
    names = {row.problem: (row.name, row.family) for row in loaded.rows}
    return Study(
        title=title or ", ".join(path.resolve().name for path in paths),
        groups=_grouped(loaded.rows, paths if by_path else ()),
        problems=problems,
        names={key: names.get(key) or described(key.suite, key.problem) for key in problems},
        unreadable=loaded.unreadable,
        fast=fast,
        ks=tuple(sorted({1, *(ks or [_usual_samples(loaded.samples)])})),
    )


def _usual_samples(samples: Sequence[Row]) -> int:
    per: dict[tuple[Any, ...], int] = {}
    for row in samples:
        key = (*_identity(row), row.problem)
        per[key] = per.get(key, 0) + 1
    return int(statistics.median_low(per.values())) if per else 1


def _identity(row: Row) -> tuple[Any, ...]:
    return tuple(getattr(row.config, name) for name in _NAMED)


def _grouped(rows: Sequence[Row], paths: Sequence[Path]) -> tuple[Group, ...]:
    """`paths`: those that runs are told apart by."""
    grouped: dict[tuple[str, tuple[Any, ...]], list[Row]] = {}
    for row in rows:
        grouped.setdefault((_origin(row, paths), _identity(row)), []).append(row)
    differ = [i for i in range(1, len(_NAMED)) if len({identity[i] for _, identity in grouped}) > 1]
    groups = []
    for (origin, identity), of in grouped.items():
        said = (_said(_NAMED[i], identity[i]) for i in differ)
        label = " · ".join([*([origin] if origin else []), str(identity[0]), *said])
        groups.append(Group(label, tuple(of)))
    return tuple(sorted(groups, key=lambda group: group.label))


def _origin(row: Row, paths: Sequence[Path]) -> str:
    """The first of the paths that holds the run, as it was given; empty if there is none to tell apart by."""
    place = Path(row.path).resolve()
    return next((str(path) for path in paths if place.is_relative_to(path.resolve())), "")


def _said(name: str, value: Any) -> str:
    if name == "world_size":
        return f"{value} ranks"
    if name in ("budget", "target"):
        given = {field: limit for field, limit in value.model_dump().items() if limit is not None}
        return f"{name} " + (", ".join(f"{field} {limit:g}" for field, limit in given.items()) or "none")
    if name == "timing":
        return "timed" if value else "not timed"
    if name in ("strategy", "platform", "dtype", "backend"):
        return str(value)
    return f"{name} {value or 'ours'}"
