"""A run while it goes on: its record, its spend, its tool calls and its end. The loop and agents that come from outside
act through it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, Protocol

from agent.budget import TOOL_DIMENSIONS, Meter
from agent.conversation import Conversation
from agent.models import redaction
from agent.models.base import ModelError
from harness.errors import HarnessError
from harness.types import Candidate, Evaluation
from runs.attempts import Attempt, meets, target_met
from runs.events import Budget, Event, ModelReplied, RunConfig, RunFinished, RunStarted, ToolReturned
from runs.fold import Folding, Run, fold
from runs.messages import Message, ToolCall, Turn
from runs.record import Record
from runs.requests import difference
from tools.base import ToolResult

MAX_HARNESS_FAILURES = 3
"""Failures of the harness, without a use of it that succeeded between them, that end the run."""
HARNESS_FAILED = (
    "The harness failed. This is not the candidate's fault and says nothing about it; you may repeat the call."
)


class Session(Protocol):
    """What is asked here of the session that the tools act on."""

    def official(self, candidate: Candidate) -> Evaluation:
        """Evaluate on fresh seeds. Raises HarnessError."""
        ...

    def begin_lane(self, candidate: Candidate | None) -> None:
        """Forget what was tried, all but a candidate to go on with."""
        ...


class Toolbox(Protocol):
    """`tools.catalogue`, or a few tools of a test's own."""

    def schemas(self) -> list[dict[str, Any]]: ...

    def call(self, session: Any, name: str, arguments: str) -> ToolResult:
        """A wrong call is a result that is not ok. Raises HarnessError."""
        ...


class Stopped(Exception):  # noqa: N818  control flow, not an error
    """Ends the run; its text is the reason, as in `RunFinished`."""


class Ended(Stopped):
    """The model itself came to its end: that of its lane where the strategy has another, else that of the run."""


class Running:
    def __init__(
        self,
        *,
        session: Session,
        record: Record,
        on_event: Callable[[Event], None],
        toolbox: Toolbox,
        state: Folding,
        talk: Conversation,
        allowed: frozenset[str] | None = None,
        grades_untested: bool = False,
        share: Callable[[Folding], Budget] = lambda state: state.config.budget,
        request: dict[str, Any] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`state` and `talk` are those of the events in the record; `allowed` are the tools that may be called (None:
        all); `grades_untested`: a candidate that was never evaluated is graded if there is no better; `share` gives the
        limits that the model is told of; `request` is the last one in the record."""
        self.session = session
        self.record = record
        self.on_event = on_event
        self.toolbox = toolbox
        self.state = state
        self.talk = talk
        self.allowed = allowed
        self.grades_untested = grades_untested
        self.share = share
        self._request = request or {}
        self.clock = clock
        self.meter = Meter(state.config.budget, clock, state.spend)
        self._harness_failures = 0

    @property
    def config(self) -> RunConfig:
        return self.state.config

    def append(self, event: Event) -> None:
        """On disk first, then everything else."""
        self.record.append(event)
        if not isinstance(event, RunStarted):
            self.state.add(event)
        self.talk.add(event)
        self.on_event(event)

    def whole(self, lead: Callable[[], None]) -> Run:
        """Let `lead` act until it raises Stopped, then grade. Whatever happens, the record gets its end."""
        reason, official = "interrupted", None
        try:
            reason = _reason(lead)
            official = self._grade()
        except KeyboardInterrupt:
            reason = "interrupted"
        except HarnessError as error:
            reason = f"error: harness: {error}"
        except Exception as error:
            reason = f"error: {type(error).__name__}: {error}"
            raise
        finally:
            self._finish(reason, official)
        return fold(self.record.events())

    def heard(
        self, turn: Turn, asked_at: float, purpose: Literal["", "judge"] = "", asked: tuple[Message, ...] = ()
    ) -> int:
        """A reply is paid for: counted, and on disk before it is acted on. Gives its step."""
        self.meter.add_turn(turn)
        step, now = self.meter.spend.steps, self.clock()
        sent = None
        if turn.request is not None:
            new = difference(self._request, turn.request)
            sent = new.model_copy(update={"new": redaction.from_json(new.new)})
            self._request, turn = turn.request, turn.model_copy(update={"request": None})
        replied = ModelReplied(
            at=now, step=step, turn=turn, seconds=now - asked_at, request=sent, purpose=purpose, asked=asked
        )
        self.append(replied)
        return step

    def left(self) -> str:
        """One line for the model: what is left for its lane."""
        return self.meter.remaining(self.share(self.state), self.state.lane.before)

    def schemas(self) -> list[dict[str, Any]]:
        return [s for s in self.toolbox.schemas() if self.allowed is None or s["name"] in self.allowed]

    def act(self, step: int, call: ToolCall) -> ToolReturned:
        """Make one tool call. Raises Stopped before it if time is used up, after it if the run has reached its end."""
        if dimension := self.meter.over(TOOL_DIMENSIONS):
            raise Stopped(f"budget: {dimension}")
        started = self.clock()
        failure: HarnessError | None = None
        try:
            if self.allowed is not None and call.name not in self.allowed:
                result = ToolResult(ok=False, text=f"{call.name} is not available in this run.")
            else:
                result = self.toolbox.call(self.session, call.name, call.arguments)
        except HarnessError as error:
            failure, result = error, ToolResult(ok=False, text=f"{HARNESS_FAILED}\n{error}")
        self.meter.add_device(result.device_s)
        if result.candidate:
            self.record.save_candidate(result.candidate)
        text, now = f"{result.text}\n\n{self.left()}", self.clock()
        event = ToolReturned(
            at=now,
            step=step,
            call=call,
            ok=result.ok,
            text=text,
            seconds=now - started,
            candidate=result.candidate.hash if result.candidate else None,
            evaluation=result.evaluation,
            data=result.data,
            device_s=result.device_s,
        )
        self.append(event)
        self._stop_if_done(result, failure)
        return event

    def stop_if_met(self, submitted: bool) -> None:
        """Raises Ended for a candidate that was submitted, Stopped for a best that meets the target."""
        if submitted:
            raise Ended("submitted")
        best, speedup = self.state.best, self.config.target.speedup
        if best and speedup is not None and meets(best.measurement, speedup):
            raise Stopped("target_met")

    def _stop_if_done(self, result: ToolResult, failure: HarnessError | None) -> None:
        if failure:
            self._harness_failures += 1
            if self._harness_failures == MAX_HARNESS_FAILURES:
                raise Stopped(f"error: harness: {failure}")
        elif result.device_s:
            # Only use of a device shows that the harness works again: between two failures a model edits and reads.
            self._harness_failures = 0
        self.stop_if_met(result.submitted)

    def _grade(self) -> Evaluation | None:
        """The official evaluation: the run's own measurements chose the best candidate, so they cannot grade it."""
        graded = self._graded(self.state.best)
        if graded is None:
            return None
        official = self.session.official(self.record.candidate(graded))
        self.meter.add_device(official.device_s)
        return official

    def _graded(self, best: Attempt | None) -> str | None:
        """Hash of the candidate that the run is graded by."""
        if best is not None:
            return best.candidate
        return self.talk.current if self.grades_untested else None

    def _finish(self, reason: str, official: Evaluation | None) -> None:
        # From the disk: Ctrl-C may have come after an event was written and before it was remembered here.
        best = self._graded(fold(self.record.events()).best)
        self.append(
            RunFinished(
                at=self.clock(),
                reason=reason,
                best=best,
                official=official,
                target_met=target_met(official, self.config.target),
                spend=self.meter.spend,
            )
        )


def _reason(lead: Callable[[], None]) -> str:
    try:
        lead()
    except Stopped as stop:
        return str(stop)
    except ModelError as error:
        return f"error: {error}"
    raise AssertionError("a run ends by Stopped")
