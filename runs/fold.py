"""The state of a run, folded from its events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from harness.errors import UsageError
from harness.types import Evaluation, Frozen
from runs.attempts import Attempt, Leader, best
from runs.events import (
    ContextReset,
    Event,
    LaneStarted,
    ModelReplied,
    RunConfig,
    RunFinished,
    RunResumed,
    RunStarted,
    Spend,
    ToolReturned,
    UserMessage,
)
from runs.lanes import Lane
from runs.rates import Charged
from runs.spend import add_device, add_turn, at_wall

_SAID = 200

Status = Literal["running", "finished", "interrupted"]


class Run(Frozen):
    run_id: str
    config: RunConfig
    status: Status
    """`interrupted`: nobody writes the record and it has no end, so the process was killed. A run stopped by Ctrl-C
    is `finished` with that reason."""
    reason: str | None
    """As in `RunFinished`; None before the end."""
    attempts: tuple[Attempt, ...]
    lanes: int = 1
    """Begun so far. However many: the run is one attempt at its problem, not so many samples."""
    best: Attempt | None
    spend: Spend
    official: Evaluation | None
    target_met: bool
    started_at: float
    """Unix time in seconds, as is `finished_at`."""
    finished_at: float | None
    prices: tuple[Charged, ...] = ()
    """At the start, and what they became when the run was resumed; empty for older records."""


class Folding:
    """A run's state while its events come in. Each event costs the same, however many there were."""

    def __init__(self, started: RunStarted) -> None:
        self._started = started
        self.prices = [started.prices] if started.prices else []
        self._attempts: list[Attempt] = []
        self._leader = Leader()
        self._spend = Spend()
        self._finished: RunFinished | None = None
        self._last_at, self._away_s = started.at, 0.0
        self._said = ""
        self.lanes = [Lane()]

    def add(self, event: Event) -> None:
        if isinstance(event, ModelReplied):
            self._spend = add_turn(self._spend, event.turn)
            self._said = self._said if event.purpose else event.turn.text[:_SAID]
        elif isinstance(event, ToolReturned):
            self._spend = add_device(self._spend, event.device_s)
            if attempt := _attempt(event, self.lane, self._said):
                self._attempts.append(attempt)
                self._leader.add(attempt)
                self.lane.add(attempt)
        elif isinstance(event, LaneStarted):
            self.lanes.append(Lane(event, self._spend))
            if parent := best([attempt for attempt in self._attempts if attempt.candidate == event.candidate]):
                self.lane.add(parent.model_copy(update={"number": 1, "lane": event.lane}))
            if event.topic:
                self.lane.spoke(event.topic)
        elif isinstance(event, UserMessage | ContextReset) and event.topic:
            self.lane.spoke(event.topic)
        elif isinstance(event, RunFinished):
            self._finished = event
        elif isinstance(event, RunResumed):
            self._finished = None
            self.prices += [event.prices] if event.prices else []
            self._away_s += max(0.0, event.at - self._last_at)
        self._last_at = event.at
        self._spend = at_wall(self._spend, event.at - self._started.at - self._away_s)

    @property
    def config(self) -> RunConfig:
        return self._started.config

    @property
    def lane(self) -> Lane:
        """The one that goes on."""
        return self.lanes[-1]

    @property
    def attempts(self) -> list[Attempt]:
        return self._attempts

    @property
    def best(self) -> Attempt | None:
        return self._leader.best

    @property
    def spend(self) -> Spend:
        return self._finished.spend if self._finished else self._spend

    def run(self, live: bool = False) -> Run:
        """`live`: somebody is still writing the events."""
        finished = self._finished
        return Run(
            run_id=self._started.run_id,
            config=self._started.config,
            status="finished" if finished else "running" if live else "interrupted",
            reason=finished.reason if finished else None,
            attempts=tuple(self._attempts),
            lanes=len(self.lanes),
            best=self.best,
            spend=self.spend,
            official=finished.official if finished else None,
            target_met=finished.target_met if finished else False,
            started_at=self._started.at,
            finished_at=finished.at if finished else None,
            prices=tuple(self.prices),
        )


def folding(events: Iterable[Event]) -> Folding:
    """Raises UsageError if they do not begin with `RunStarted`."""
    rest = iter(events)
    started = next(rest, None)
    if not isinstance(started, RunStarted):
        raise UsageError("the record does not begin with run_started")
    state = Folding(started)
    for event in rest:
        state.add(event)
    return state


def fold(events: Iterable[Event], live: bool = False) -> Run:
    """`live`: somebody is still writing these events. Raises UsageError if they do not begin with `RunStarted`."""
    return folding(events).run(live)


def _attempt(event: ToolReturned, lane: Lane, said: str) -> Attempt | None:
    """The attempt that a tool call was, if it evaluated a candidate or made one that differs from the one before."""
    evaluation = event.evaluation
    candidate = evaluation.candidate if evaluation else event.candidate
    if candidate is None:
        return None
    earlier = lane.attempts
    same = bool(earlier) and earlier[-1].candidate == candidate
    if evaluation is None and same:
        return None
    return Attempt(
        # As the tools count (`tools.session.Session.write`): a model may ask for an attempt by its number.
        number=(earlier[-1].number if earlier else 0) + (not same),
        step=event.step,
        candidate=candidate,
        tool=event.call.name,
        verdict=evaluation.verdict if evaluation else None,
        summary=evaluation.summary if evaluation else "",
        measurement=evaluation.measurement if evaluation else None,
        mechanisms=evaluation.mechanisms if evaluation else (),
        lane=lane.number,
        said=said,
    )
