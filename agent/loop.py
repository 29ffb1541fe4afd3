"""The agentic loop: ask the model, run its tool calls, until a reason to stop; then the harness grades the best."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from agent import strategies
from agent.budget import TOOL_DIMENSIONS, Meter
from agent.conversation import Conversation
from agent.models.base import ContextOverflowError, Model, ModelError
from agent.models.replay import REPLAY_END
from agent.state import HEAD, written
from agent.strategies.base import Restart, Say, Stop, Strategy
from harness.errors import HarnessError, UsageError
from harness.types import Candidate, Evaluation
from runs.attempts import Attempt, meets, target_met
from runs.events import (
    ContextReset,
    Event,
    ModelReplied,
    RunConfig,
    RunFinished,
    RunResumed,
    RunStarted,
    ToolReturned,
    UserMessage,
)
from runs.fold import Folding, Run, fold, folding
from runs.messages import Message, ToolCall, Turn
from runs.record import Record
from tools.base import ToolResult

MAX_NUDGES = 2
"""Replies without a tool call, in a row, that are answered; one more ends the run."""
MAX_HARNESS_FAILURES = 3
"""Failures of the harness, without a use of it that succeeded between them, that end the run."""

LEAST_LEFT_OUT = 6
"""Messages that make a summary worth while: it may be long itself."""
SUBMIT = "submit"
"""The tool whose success ends a run."""
NUDGE = "Your reply called no tool, so nothing happened. Go on with a tool call, or call submit if you are done."
HARNESS_FAILED = (
    "The harness failed. This is not the candidate's fault and says nothing about it; you may repeat the call."
)


class Session(Protocol):
    """What the loop itself asks of the session that the tools act on."""

    def official(self, candidate: Candidate) -> Evaluation:
        """Evaluate on fresh seeds. Raises HarnessError."""
        ...


class Toolbox(Protocol):
    """`tools.catalogue`, or a few tools of a test's own."""

    def schemas(self) -> list[dict[str, Any]]: ...

    def call(self, session: Any, name: str, arguments: str) -> ToolResult:
        """A wrong call is a result that is not ok. Raises HarnessError."""
        ...


class _Stop(Exception):  # noqa: N818  control flow, not an error
    """Ends the run; its text is the reason, as in `RunFinished`."""


def run_loop(
    config: RunConfig,
    model: Model,
    session: Session,
    record: Record,
    messages: Sequence[Message],
    on_event: Callable[[Event], None],
    *,
    prompts_hash: str,
    toolbox: Toolbox,
    clock: Callable[[], float] = time.time,
) -> Run:
    """One whole run, recorded step by step. Ctrl-C ends it with the reason `interrupted` and returns.

    Raises UsageError, before anything is recorded, for a limit in USD on a model whose price is unknown. An exception
    that nothing here is meant to answer is recorded as the reason and raised again. The caller closes the record.
    """
    if config.budget.usd is not None and not model.priced():
        raise UsageError(
            f"the price of {model.name} is unknown, so a limit in USD cannot be kept: limit tokens or steps"
        )
    started = RunStarted(
        at=clock(), run_id=record.run_id, config=config, prompts_hash=prompts_hash, messages=tuple(messages)
    )
    meter = Meter(config.budget, clock)
    strategy, talk = strategies.make(config.strategy), Conversation()
    loop = _Loop(config, model, session, record, on_event, toolbox, clock, meter, Folding(started), talk, strategy)
    loop.append(started)
    return loop.run()


def resume_loop(
    model: Model,
    session: Session,
    record: Record,
    on_event: Callable[[Event], None],
    *,
    toolbox: Toolbox,
    clock: Callable[[], float] = time.time,
) -> Run:
    """Go on with a run whose process ended before it finished: in the same record, no reply asked for twice, tool calls
    of which no result was recorded made again. `session` has been restored from the same events. Otherwise as
    `run_loop`."""
    events = list(record.events())
    state = folding(events)
    meter = Meter(state.config.budget, clock, state.spend)
    strategy, talk = strategies.make(state.config.strategy), Conversation(events)
    loop = _Loop(state.config, model, session, record, on_event, toolbox, clock, meter, state, talk, strategy)
    loop.append(RunResumed(at=clock()))
    return loop.run()


@dataclass
class _Loop:
    config: RunConfig
    model: Model
    session: Session
    record: Record
    on_event: Callable[[Event], None]
    toolbox: Toolbox
    clock: Callable[[], float]
    meter: Meter
    state: Folding
    talk: Conversation
    strategy: Strategy
    harness_failures: int = 0

    def run(self) -> Run:
        reason, official = "interrupted", None
        try:
            reason = self.until_stopped()
            official = self.grade()
        except KeyboardInterrupt:
            reason = "interrupted"
        except HarnessError as error:
            reason = f"error: harness: {error}"
        except Exception as error:
            reason = f"error: {type(error).__name__}: {error}"
            raise
        finally:
            self.finish(reason, official)
        return fold(self.record.events())

    def until_stopped(self) -> str:
        try:
            self.end_step()
            while True:
                self.step()
        except _Stop as stop:
            return str(stop)
        except ModelError as error:
            return f"error: {error}"

    def end_step(self) -> None:
        """What a process that ended left of its last step."""
        for event in self.talk.returned[-1:]:
            self.stop_if_met(event.call.name == SUBMIT and event.ok)
        if self.talk.unanswered:
            self.nudge()
        for call in self.talk.pending:
            self.act(self.talk.step, call)

    def step(self) -> None:
        if dimension := self.meter.over():
            raise _Stop(f"budget: {dimension}")
        self.follow(self.strategy.next(self.state, self.talk))
        asked = self.clock()
        turn = self.ask()
        if turn.stop == REPLAY_END:
            raise _Stop("model_stopped")
        self.meter.add_turn(turn)
        step, now = self.meter.spend.steps, self.clock()
        self.append(ModelReplied(at=now, step=step, turn=turn, seconds=now - asked))
        if not turn.tool_calls:
            return self.nudge()
        for call in turn.tool_calls:
            self.act(step, call)

    def follow(self, said: Say | Stop | None) -> None:
        """Do what the strategy says."""
        if isinstance(said, Stop):
            raise _Stop(said.reason)
        if isinstance(said, Restart):
            self.reset("strategy", said)
        elif said is not None:
            self.append(UserMessage(at=self.clock(), text=said.text, topic=said.topic))

    def ask(self) -> Turn:
        last = self.talk.turn
        long = last is not None and last.usage.input_tokens > self.config.context_tokens
        if long and self.talk.since_reset >= LEAST_LEFT_OUT:
            self.reset("long")
        try:
            return self.model.reply(self.talk.messages, self.schemas())
        except ContextOverflowError:
            if not self.talk.since_reset:
                raise  # there is nothing to leave out
            self.reset("overflow")
            return self.model.reply(self.talk.messages, self.schemas())

    def schemas(self) -> list[dict[str, Any]]:
        allowed = self.strategy.tools
        return [s for s in self.toolbox.schemas() if allowed is None or s["name"] in allowed]

    def reset(self, reason: Literal["long", "overflow", "strategy"], said: Say | None = None) -> None:
        head, topic = (said.text, said.topic) if said else (HEAD, "")
        text = f"{head}\n\n{written(self.state, self.talk, self.record)}\n\n{self.meter.remaining()}"
        self.append(ContextReset(at=self.clock(), reason=reason, text=text, topic=topic))

    def nudge(self) -> None:
        if self.talk.nudges == MAX_NUDGES:
            raise _Stop("model_stopped")
        self.append(UserMessage(at=self.clock(), text=f"{NUDGE}\n\n{self.meter.remaining()}"))

    def act(self, step: int, call: ToolCall) -> None:
        if dimension := self.meter.over(TOOL_DIMENSIONS):
            raise _Stop(f"budget: {dimension}")
        started = self.clock()
        failure: HarnessError | None = None
        try:
            if self.strategy.tools is not None and call.name not in self.strategy.tools:
                result = ToolResult(ok=False, text=f"{call.name} is not available in this run.")
            else:
                result = self.toolbox.call(self.session, call.name, call.arguments)
        except HarnessError as error:
            failure, result = error, ToolResult(ok=False, text=f"{HARNESS_FAILED}\n{error}")
        self.meter.add_device(result.device_s)
        if result.candidate:
            self.record.save_candidate(result.candidate)
        text, now = f"{result.text}\n\n{self.meter.remaining()}", self.clock()
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
        self.stop_if_done(result, failure)

    def stop_if_done(self, result: ToolResult, failure: HarnessError | None) -> None:
        if failure:
            self.harness_failures += 1
            if self.harness_failures == MAX_HARNESS_FAILURES:
                raise _Stop(f"error: harness: {failure}")
        elif result.device_s:
            # Only use of a device shows that the harness works again: between two failures a model edits and reads.
            self.harness_failures = 0
        self.stop_if_met(result.submitted)

    def stop_if_met(self, submitted: bool) -> None:
        if submitted:
            raise _Stop("submitted")
        best, speedup = self.state.best, self.config.target.speedup
        if best and speedup is not None and meets(best.measurement, speedup):
            raise _Stop("target_met")

    def grade(self) -> Evaluation | None:
        """The official evaluation: the run's own measurements chose the best candidate, so they cannot grade it."""
        graded = self.best(self.state.best)
        if graded is None:
            return None
        official = self.session.official(self.record.candidate(graded))
        self.meter.add_device(official.device_s)
        return official

    def best(self, best: Attempt | None) -> str | None:
        """Hash of the candidate that the run is graded by."""
        if best is not None:
            return best.candidate
        return self.talk.current if self.strategy.grades_untested else None

    def finish(self, reason: str, official: Evaluation | None) -> None:
        # From the disk: Ctrl-C may have come after an event was written and before it was remembered here.
        best = self.best(fold(self.record.events()).best)
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

    def append(self, event: Event) -> None:
        """On disk first, then everything else."""
        self.record.append(event)
        if not isinstance(event, RunStarted):
            self.state.add(event)
        self.talk.add(event)
        self.on_event(event)
