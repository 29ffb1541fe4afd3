"""What the API answers with."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from pydantic import Field

from harness.types import Evaluation, Frozen
from runs.attempts import Attempt
from runs.events import RunConfig, Spend
from runs.fold import Status
from runs.rates import Charged
from service.jobs.tables import JobRow, RunIndex

T = TypeVar("T")


class Page(Frozen, Generic[T]):
    """Some of a list."""

    items: tuple[T, ...]
    total: int
    """In the whole list."""


class RunLine(Frozen):
    """A run in a list."""

    run_id: str
    sweep: str
    """Empty: of none."""
    problem: int
    name: str
    """The problem's."""
    case: str
    suite: str
    platform: str
    world_size: int
    dtype: str
    backend: str
    model: str
    strategy: str
    state: str
    """`queued`, `running`, `paused`, `finished`, `interrupted` (its process has ended, it can be gone on with),
    `failed` or `cancelled` (before it began), `unreadable`."""
    reason: str
    """Why it ended; as in the record's `run_finished`."""
    verdict: str
    """Of the official evaluation; before the end, of the last one."""
    target_met: bool
    helped: bool
    steps: int
    attempts: int
    speedup: float | None
    """Of the official evaluation; before the end, of the best so far."""
    tokens: int
    usd: float
    wall_s: float
    device_s: float
    started_at: float
    """Unix time in seconds, as is `finished_at`; of a queued run, when it was asked for."""
    finished_at: float | None


def run_line(row: RunIndex) -> RunLine:
    return RunLine.model_validate({name: getattr(row, name) for name in RunLine.model_fields})


class Begun(Frozen):
    """A run that was asked for."""

    run_id: str


class Told(Frozen):
    """A request that was taken."""

    run_id: str
    taken: str
    """When it takes effect."""


class RunDetail(Frozen):
    """The state of a run. Its attempts and events have pages of their own."""

    run_id: str
    status: Status
    reason: str | None
    config: RunConfig
    best: Attempt | None
    spend: Spend
    official: Evaluation | None
    """The evaluation that counts, made afresh at the end."""
    target_met: bool
    started_at: float
    finished_at: float | None
    lanes: int
    helped: bool
    prices: tuple[Charged, ...]
    attempts: int
    events: int
    active: bool
    """Whether this server leads it, or is about to."""
    waiting: tuple[str, ...]
    """What persons asked for that has not been taken yet."""


class EventPage(Frozen):
    """Some events of a record."""

    events: tuple[dict[str, Any], ...]
    """As in the file `events.jsonl`."""
    first: int
    """Number of the first of them, from 1."""
    total: int


class EvaluationAnswer(Frozen):
    """An evaluation that was asked for."""

    id: str
    state: str
    """`queued`, `running`, `ended` or `failed` (for a reason of ours or the machine's)."""
    error: str = ""
    evaluation: Evaluation | None = None


def evaluation_answer(job: JobRow) -> EvaluationAnswer:
    answer = Evaluation.model_validate_json(job.answer) if job.answer else None
    return EvaluationAnswer(id=job.id, state=job.state, error=job.error, evaluation=answer)


class SweepLine(Frozen):
    name: str
    state: str
    """`queued`, `running`, `ended` or `failed`; `idle` if this server was not asked for it."""
    reason: str
    problems: int
    models: tuple[str, ...]
    samples: int


class SweepDetail(SweepLine):
    plan: dict[str, Any]
    cells: dict[str, int]
    """How many are in each state."""
    spend: Spend
    wall_s: float


class Hint(Frozen):
    text: str = Field(min_length=1, max_length=10_000)


class NewCandidate(Frozen):
    source: str = Field(min_length=1, max_length=1_000_000)
    """The whole module."""
