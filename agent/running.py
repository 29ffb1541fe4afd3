"""A run while it goes on: its record, its spend, its tool calls and its end. The loop and agents that come from outside
act through it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, Protocol

from agent.budget import REPLIES, STOPPED, TOOL_DIMENSIONS, Meter
from agent.cap import Cap
from agent.conversation import Conversation
from agent.models import redaction
from agent.models.base import ModelError
from agent.person import POLL_S, Inbox, interrupted_if
from harness.allowance import Allowance
from harness.errors import BudgetEndedError, HarnessError
from harness.types import Candidate, Evaluation
from runs.attempts import Attempt, meets, target_met
from runs.events import CANCELLED, Budget, Event, ModelReplied, RunConfig, RunFinished, RunStarted, ToolReturned
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
BUDGET_ENDED = (
    "The run's budget ended during this call ({limit}), so it was broken off. That says nothing about the candidate."
)
BROKEN_OFF = "The person who leads this run has broken this call off. That says nothing about the candidate."
NOT_MADE = "The person who leads this run has broken this step off: the call was not made."

SUBMIT = "submit"
"""The tool whose success ends a run."""


class Session(Protocol):
    """What is asked here of the session that the tools act on."""

    allowance: Allowance
    """What the call that is under way may use."""

    def write(self, source: str) -> Any:
        """Make this the current candidate."""
        ...

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
        """A wrong call is a result that is not ok. Raises HarnessError, and BudgetEndedError when the session's
        allowance is over."""
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
        wait: Callable[[float], object] = time.sleep,
        cap: Cap | None = None,
        stopped: Callable[[], bool] | None = None,
        steps: str = REPLIES,
    ) -> None:
        """`state` and `talk` are those of the events in the record; `allowed` are the tools that may be called (None:
        all); `grades_untested`: a candidate that was never evaluated is graded if there is no better; `share` gives the
        limits that the model is told of; `request` is the last one in the record; `wait`: called with seconds while a
        person has the run paused; may raise Stopped; `cap` is shared with other runs; `stopped`: whether what is under
        way is to be broken off, which does not end the run; `steps`: what the leader is told that they are."""
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
        self.wait = wait
        self.inbox = Inbox(self)
        self.stopped = stopped or (lambda: False)
        self.steps = steps
        self.meter = Meter(state.config.budget, clock, state.spend, cap, stopped)
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
        self.meter.join()
        try:
            lead()
        except BaseException as by:
            return self.end(by)
        raise AssertionError("a run ends by Stopped")

    def end(self, by: BaseException) -> Run:
        """Grade, unless what ended the run forbids it, and write the record's end. Raises `by` again if nothing here
        is meant to answer it."""
        reason, official = "interrupted", None
        try:
            reason = _reason(by)
            with interrupted_if(self.inbox.asks_for_no_grade):
                official = self._grade()
        except KeyboardInterrupt:
            reason = "interrupted"
        except HarnessError as error:
            reason = f"error: harness: {error}"
        except Exception as error:
            reason = f"error: {type(error).__name__}: {error}"
            raise
        finally:
            self.inbox.clear_cancels()
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
        return self.meter.remaining(self.share(self.state), self.state.lane.before, self.steps)

    def heed(self) -> None:
        """Between steps: do what persons have asked for, and hold while the run is paused. Raises Stopped."""
        left_out = self.state.away_s
        try:
            self.inbox.take()
            while self.state.paused:
                self.wait(POLL_S)
                self.inbox.take()
        finally:
            self.meter.leave_out(self.state.away_at(self.clock()) - left_out)
        self.obey_cancel()

    def obey_cancel(self) -> None:
        """Raises Stopped if a person has cancelled the run."""
        self.inbox.take(cancel_only=True)
        if self.state.cancelled:
            raise Stopped(CANCELLED)

    def end_step(self, *said: str) -> None:
        """What a process that ended left of its last step; `said` as in `act`. Raises Stopped."""
        for event in self.talk.returned[-1:]:
            self.stop_if_met(event.call.name == SUBMIT and event.ok)
        for call in self.talk.pending:
            self.act(self.talk.step, call, *said)

    def schemas(self) -> list[dict[str, Any]]:
        return [s for s in self.toolbox.schemas() if self.allowed is None or s["name"] in self.allowed]

    def act(self, step: int, call: ToolCall, *said: str) -> ToolReturned:
        """Make one tool call; `said` is put behind what the tool says. Raises Stopped before it if time is used up or
        a person has cancelled the run, after it if the run has reached its end."""
        self.obey_cancel()
        if dimension := self.meter.over(TOOL_DIMENSIONS):
            raise Stopped(f"budget: {dimension}")
        started = self.clock()
        use = self.session.allowance = self.meter.call()
        failure: HarnessError | BudgetEndedError | None = None
        try:
            if self.stopped():
                result = ToolResult(ok=False, text=NOT_MADE)
            elif self.allowed is not None and call.name not in self.allowed:
                result = ToolResult(ok=False, text=f"{call.name} is not available in this run.")
            else:
                result = self.toolbox.call(self.session, call.name, call.arguments)
        except BudgetEndedError as error:
            stopped = error.limit == STOPPED
            failure, text = (None, BROKEN_OFF) if stopped else (error, BUDGET_ENDED.format(limit=error.limit))
            result = ToolResult(ok=False, text=text, device_s=use.device_s)
        except HarnessError as error:
            failure, result = error, ToolResult(ok=False, text=f"{HARNESS_FAILED}\n{error}", device_s=use.device_s)
        waited_s = use.waited_s
        self.meter.add_use(result.device_s, waited_s)
        if result.candidate:
            self.record.save_candidate(result.candidate)
        text, now = "\n\n".join([result.text, *said, self.left()]), self.clock()
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
            waited_s=waited_s,
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

    def _stop_if_done(self, result: ToolResult, failure: HarnessError | BudgetEndedError | None) -> None:
        if isinstance(failure, BudgetEndedError):
            raise failure
        if failure:
            self._harness_failures += 1
            if self._harness_failures == MAX_HARNESS_FAILURES:
                raise Stopped(f"error: harness: {failure}")
        elif result.device_s:
            # Only use of a device shows that the harness works again: between two failures a model edits and reads.
            self._harness_failures = 0
        self.stop_if_met(result.submitted)

    def _grade(self) -> Evaluation | None:
        """The official evaluation: the run's own measurements chose the best candidate, so they cannot grade it. It
        always takes place: no limit of the run's bounds it."""
        graded = self._graded(self.state.best)
        if graded is None:
            return None
        official = self.session.official(self.record.candidate(graded))
        self.meter.add_use(official.device_s, official.waited_s)
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
                spend=self.meter.close(),
            )
        )


def _reason(by: BaseException) -> str:
    if isinstance(by, Stopped):
        return str(by)
    if isinstance(by, BudgetEndedError):
        return f"budget: {by.limit}"
    if isinstance(by, ModelError):
        return f"error: {by}"
    raise by
