"""What a sweep is: its cells, its plan, and the events that say which cell is which run."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter

from harness.errors import UsageError
from harness.types import Frozen
from runs.events import RunConfig, is_final

_CELL_FIELDS = frozenset({"problem", "case", "model", "sample"})
"""Fields of a RunConfig that differ between a sweep's cells."""


class Cell(Frozen):
    """One run of a sweep."""

    problem: int
    model: str
    sample: int
    """From 1."""

    def __str__(self) -> str:
        return f"p{self.problem:02d} {self.model} #{self.sample}"


class Plan(Frozen):
    """What a sweep runs, fully resolved."""

    name: str
    cases: dict[int, str]
    """Problem -> case."""
    models: tuple[str, ...]
    samples: int
    common: dict[str, Any]
    """All other fields of a RunConfig."""
    prompts_hash: str
    """Of all prompt files when the plan was made, as `harness` is Ringsmith's version; noted, not enforced."""
    harness: str

    @classmethod
    def make(cls, configs: Sequence[RunConfig], name: str, prompts_hash: str, harness: str) -> Self:
        """`configs` are the cells of a full grid that differ in nothing else."""
        return cls(
            name=name,
            cases={config.problem: config.case for config in configs},
            models=tuple(dict.fromkeys(config.model for config in configs)),
            samples=max(config.sample for config in configs),
            common=configs[0].model_dump(mode="json", exclude=set(_CELL_FIELDS)),
            prompts_hash=prompts_hash,
            harness=harness,
        )

    @property
    def suite(self) -> str:
        return str(self.common.get("suite", ""))

    def cells(self) -> list[Cell]:
        """First samples first: what is known early covers all problems and models."""
        return [
            Cell(problem=problem, model=model, sample=sample)
            for sample in range(1, self.samples + 1)
            for problem in sorted(self.cases)
            for model in self.models
        ]

    def config(self, cell: Cell) -> RunConfig:
        given = {"problem": cell.problem, "case": self.cases[cell.problem], "model": cell.model, "sample": cell.sample}
        return RunConfig.model_validate({**self.common, **given})

    def widened(self, wanted: Plan) -> Plan:
        """This plan with the other's problems, models and samples added: nothing is ever taken away. Where cells are
        evaluated is the other's: a node may get another address.

        Raises UsageError, naming the fields, if the other means something else by a cell."""
        if changed := [*_changes(self._common(), wanted._common()), *self._other_cases(wanted)]:
            raise UsageError(
                f"sweep {self.name} was begun with other settings, and its runs would not be comparable: "
                f"{'; '.join(changed)}. Use another --name"
            )
        return self.model_copy(
            update={
                "common": self.common | {"sandbox": wanted.common.get("sandbox", "")},
                "cases": self.cases | wanted.cases,
                "models": tuple(dict.fromkeys((*self.models, *wanted.models))),
                "samples": max(self.samples, wanted.samples),
            }
        )

    def _common(self) -> dict[str, Any]:
        """What the cells' meaning hangs on, with the defaults of fields that a plan of an earlier version lacks."""
        return self.config(self.cells()[0]).model_dump(mode="json", exclude={*_CELL_FIELDS, "sandbox"})

    def _other_cases(self, wanted: Plan) -> Iterator[str]:
        for problem, case in self.cases.items():
            if (other := wanted.cases.get(problem, case)) != case:
                yield f"case of problem {problem}: {case} -> {other}"


def _changes(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in old.items():
        if isinstance(value, dict):
            yield from _changes(value, new[name], f"{prefix}{name}.")
        elif value != new[name]:
            yield f"{prefix}{name}: {value} -> {new[name]}"


class _Event(Frozen):
    at: float
    """Unix time in seconds."""


class SweepStarted(_Event):
    """A process began to work on the sweep."""

    kind: Literal["sweep_started"] = "sweep_started"
    pid: int
    engine: str
    harness: str
    prompts_hash: str
    cells: int


class SweepEnded(_Event):
    kind: Literal["sweep_ended"] = "sweep_ended"
    reason: str
    """`done`, `cap: usd` (or another dimension), `drained`, `interrupted`, or `error: ...`."""


class CellStarted(_Event):
    """Written before the run's record is made, or gone on with."""

    kind: Literal["cell_started"] = "cell_started"
    cell: Cell
    run_id: str
    attempt: int
    """In this process, from 1."""


class CellEnded(_Event):
    kind: Literal["cell_ended"] = "cell_ended"
    cell: Cell
    run_id: str
    reason: str
    """As in `RunFinished`. `interrupted` and `error: ...` are no end: the run goes on with the next attempt."""

    @property
    def final(self) -> bool:
        return is_final(self.reason)


SweepEvent = Annotated[SweepStarted | SweepEnded | CellStarted | CellEnded, Field(discriminator="kind")]
SWEEP_EVENT: TypeAdapter[SweepEvent] = TypeAdapter(SweepEvent)


class CellState(Frozen):
    """What the events say of one cell."""

    run_id: str
    """Of its last attempt."""
    reason: str | None
    """How that ended; None if nobody wrote it down."""

    @property
    def final(self) -> bool:
        return is_final(self.reason)


def fold_sweep(events: Iterable[SweepEvent]) -> dict[Cell, CellState]:
    states: dict[Cell, CellState] = {}
    for event in events:
        if isinstance(event, CellStarted):
            states[event.cell] = CellState(run_id=event.run_id, reason=None)
        elif isinstance(event, CellEnded):
            states[event.cell] = CellState(run_id=event.run_id, reason=event.reason)
    return states


def wall_s(events: Sequence[SweepEvent]) -> float:
    """Seconds that processes have worked on the sweep, the time between them left out."""
    total = 0.0
    for before, event in itertools.pairwise(events):
        if not isinstance(event, SweepStarted):
            total += max(0.0, event.at - before.at)
    return total
