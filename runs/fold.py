"""The state of a run, folded from its events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from harness.errors import UsageError
from harness.types import Evaluation, Frozen
from runs.attempts import Attempt, Leader, best
from runs.events import (
    AgentCalled,
    ContextReset,
    Event,
    LaneStarted,
    ModelReplied,
    PersonActed,
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
from runs.spend import add_call, add_turn, add_use, at_wall

_SAID = 200

Status = Literal["running", "paused", "finished", "interrupted"]


class Run(Frozen):
    run_id: str
    config: RunConfig
    status: Status
    """`interrupted`: nobody writes the record and it has no end, so the process was killed. A run stopped by Ctrl-C
    is `finished` with that reason. `paused`: by a person, its process waits."""
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
    helped: bool = False
    """Whether a person gave a hint or a candidate: what came of it is not the model's work alone."""

    @property
    def evaluated(self) -> int:
        """How many attempts got a verdict: what tables of runs call attempts. The others only changed a text."""
        return sum(attempt.verdict is not None for attempt in self.attempts)


class Folding:
    """A run's state while its events come in. Each event costs the same, however many there were."""

    def __init__(self, started: RunStarted) -> None:
        self._started = started
        self.prices = [started.prices] if started.prices else []
        self._attempts: list[Attempt] = []
        self._leader = Leader()
        self._spend = Spend()
        self._finished: RunFinished | None = None
        self._last_at = started.at
        self._said = ""
        self.lanes = [Lane()]
        self.away_s = 0.0
        """Without a pause that goes on: see `away_at`."""
        self._paused_at: float | None = None
        self.taken: set[str] = set()
        """Ids of persons' requests."""
        self.helped = False
        self.cancelled = False
        """Whether a person has, since the run was last begun."""

    def add(self, event: Event) -> None:
        if isinstance(event, ModelReplied):
            self._spend = add_turn(self._spend, event.turn)
            self._said = self._said if event.purpose else event.turn.text[:_SAID]
        elif isinstance(event, AgentCalled):
            self._spend = add_call(self._spend)
        elif isinstance(event, ToolReturned):
            self._spend = add_use(self._spend, event.device_s, event.waited_s)
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
        elif isinstance(event, PersonActed):
            self._person(event)
        elif isinstance(event, UserMessage | ContextReset) and event.topic:
            self.lane.spoke(event.topic)
        elif isinstance(event, RunFinished):
            self._finished, self.cancelled = event, False
            self._go_on(event.at)
        elif isinstance(event, RunResumed):
            self._finished = None
            self.prices += [event.prices] if event.prices else []
            if self.paused:
                self._go_on(event.at)
            else:
                self.away_s += max(0.0, event.at - self._last_at)
        self._last_at = event.at
        self._spend = at_wall(self._spend, event.at - self._started.at - self.away_at(event.at))

    def _person(self, event: PersonActed) -> None:
        self.taken.add(event.request)
        if event.action == "pause" and not self.paused:
            self._paused_at = event.at
        elif event.action in ("resume", "cancel"):
            self._go_on(event.at)
            self.cancelled = self.cancelled or event.action == "cancel"
        elif event.action in ("hint", "candidate"):
            self.helped = True
            if attempt := _edited(event, self.lane):
                self._attempts.append(attempt)
                self.lane.add(attempt)

    def _go_on(self, at: float) -> None:
        self.away_s, self._paused_at = self.away_at(at), None

    def away_at(self, now: float) -> float:
        """Seconds until then that count for nothing: between processes, and while a person had the run paused."""
        return self.away_s + (0.0 if self._paused_at is None else max(0.0, now - self._paused_at))

    @property
    def paused(self) -> bool:
        return self._paused_at is not None

    @property
    def config(self) -> RunConfig:
        return self._started.config

    @property
    def lane(self) -> Lane:
        """The one that goes on."""
        return self.lanes[-1]

    @property
    def target_met(self) -> bool:
        return self._finished is not None and self._finished.target_met

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
            status="finished" if finished else "interrupted" if not live else "paused" if self.paused else "running",
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
            helped=self.helped,
        )


_RECORD = "the record"
"""What errors call it where the caller does not say which."""


def parted(events: Iterable[Event], record: str = _RECORD) -> tuple[RunStarted, Iterator[Event]]:
    """A run's first event, and the others. Raises UsageError, which names the `record`, if the first is not
    `RunStarted`."""
    rest = iter(events)
    started = next(rest, None)
    if not isinstance(started, RunStarted):
        raise UsageError(f"{record} does not begin with run_started")
    return started, rest


def folding(events: Iterable[Event], record: str = _RECORD) -> Folding:
    """Raises UsageError, as `parted`."""
    started, rest = parted(events, record)
    state = Folding(started)
    for event in rest:
        state.add(event)
    return state


def fold(events: Iterable[Event], live: bool = False, record: str = _RECORD) -> Run:
    """`live`: somebody is still writing these events. Raises UsageError, as `parted`."""
    return folding(events, record).run(live)


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


def _edited(event: PersonActed, lane: Lane) -> Attempt | None:
    """The attempt that a person's candidate is, if it differs from the one before."""
    earlier = lane.attempts
    if event.candidate is None or (earlier and earlier[-1].candidate == event.candidate):
        return None
    return Attempt(
        number=earlier[-1].number + 1 if earlier else 1,
        step=event.step,
        candidate=event.candidate,
        tool="person",
        verdict=None,
        summary="",
        measurement=None,
        lane=lane.number,
    )
