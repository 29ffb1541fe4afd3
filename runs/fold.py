"""The state of a run, folded from its events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from harness.errors import UsageError
from harness.types import Evaluation, Frozen
from runs.attempts import Attempt, best
from runs.events import Event, ModelReplied, RunConfig, RunFinished, RunStarted, Spend, ToolReturned
from runs.spend import add_device, add_turn, at_wall

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
    best: Attempt | None
    spend: Spend
    official: Evaluation | None
    target_met: bool
    started_at: float
    """Unix time in seconds, as is `finished_at`."""
    finished_at: float | None


def fold(events: Iterable[Event], live: bool = False) -> Run:
    """`live`: somebody is still writing these events. Raises UsageError if they do not begin with `RunStarted`."""
    rest = iter(events)
    started = next(rest, None)
    if not isinstance(started, RunStarted):
        raise UsageError("the record does not begin with run_started")
    attempts: list[Attempt] = []
    spend = Spend()
    finished: RunFinished | None = None
    for event in rest:
        if isinstance(event, ModelReplied):
            spend = add_turn(spend, event.turn)
        elif isinstance(event, ToolReturned):
            spend = add_device(spend, event.device_s)
            if attempt := _attempt(event, attempts):
                attempts.append(attempt)
        elif isinstance(event, RunFinished):
            finished = event
        spend = at_wall(spend, event.at - started.at)
    return Run(
        run_id=started.run_id,
        config=started.config,
        status="finished" if finished else "running" if live else "interrupted",
        reason=finished.reason if finished else None,
        attempts=tuple(attempts),
        best=best(attempts),
        spend=finished.spend if finished else spend,
        official=finished.official if finished else None,
        target_met=finished.target_met if finished else False,
        started_at=started.at,
        finished_at=finished.at if finished else None,
    )


def _attempt(event: ToolReturned, earlier: list[Attempt]) -> Attempt | None:
    """The attempt that a tool call was, if it evaluated a candidate or made one that differs from the one before."""
    evaluation = event.evaluation
    candidate = evaluation.candidate if evaluation else event.candidate
    if candidate is None:
        return None
    if evaluation is None and earlier and earlier[-1].candidate == candidate:
        return None
    return Attempt(
        number=len(earlier) + 1,
        step=event.step,
        candidate=candidate,
        tool=event.call.name,
        verdict=evaluation.verdict if evaluation else None,
        summary=evaluation.summary if evaluation else "",
        measurement=evaluation.measurement if evaluation else None,
        mechanisms=evaluation.mechanisms if evaluation else (),
    )
