"""The agentic loop: ask the model, run its tool calls, until a reason to stop; then the harness grades the best."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from agent import judge, prices, strategies
from agent.conversation import Conversation
from agent.models.base import ContextOverflowError, Model
from agent.models.replay import REPLAY_END
from agent.running import Ended, Running, Session, Stopped, Toolbox
from agent.shortening import KEPT_STEPS, LEAST_GAIN
from agent.state import HEAD, branched, written
from agent.strategies.base import Begin, Judge, Restart, Say, Step, Stop, Strategy
from harness.errors import UsageError
from runs.events import (
    ContextReset,
    Event,
    LaneStarted,
    ResultsShortened,
    RunConfig,
    RunResumed,
    RunStarted,
    UserMessage,
)
from runs.fold import Folding, Run, folding
from runs.messages import Message, Turn
from runs.record import Record
from runs.requests import last_request

MAX_NUDGES = 2
"""Replies without a tool call, in a row, that are answered; one more ends the lane, and most runs have one."""
LEAST_LEFT_OUT = 6
"""Messages that make a summary worth while: it may be long itself."""
SUBMIT = "submit"
"""The tool whose success ends a lane."""
NUDGE = "Your reply called no tool, so nothing happened. Go on with a tool call, or call submit if you are done."


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
        at=clock(),
        run_id=record.run_id,
        config=config,
        prompts_hash=prompts_hash,
        messages=tuple(messages),
        prices=prices.charged(model.name),
    )
    loop = _loop(model, Folding(started), Conversation(), session, record, on_event, toolbox, clock)
    loop.run.append(started)
    return loop.run.whole(loop.lead)


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
    state, talk = folding(events), Conversation(events)
    loop = _loop(model, state, talk, session, record, on_event, toolbox, clock, last_request(events))
    now = prices.charged(model.name)
    changed = bool(state.prices) and now != state.prices[-1]
    loop.run.append(RunResumed(at=clock(), prices=now if changed else None))
    return loop.run.whole(loop.lead)


def _loop(
    model: Model,
    state: Folding,
    talk: Conversation,
    session: Session,
    record: Record,
    on_event: Callable[[Event], None],
    toolbox: Toolbox,
    clock: Callable[[], float],
    request: dict[str, Any] | None = None,
) -> _Loop:
    strategy = strategies.make(state.config.strategy)
    run = Running(
        session=session,
        record=record,
        on_event=on_event,
        toolbox=toolbox,
        state=state,
        talk=talk,
        allowed=strategy.tools,
        grades_untested=strategy.grades_untested,
        share=strategy.share,
        request=request,
        clock=clock,
    )
    return _Loop(model, strategy, run)


class _Loop:
    def __init__(self, model: Model, strategy: Strategy, run: Running) -> None:
        self.model = model
        self.strategy = strategy
        self.run = run

    def lead(self) -> None:
        """Until the run is to end. Raises Stopped or ModelError."""
        go_on = self.end_step
        while True:
            try:
                go_on()
            except Ended:
                lane = self.strategy.ended(self.run.state)
                if lane is None or self.run.meter.over():
                    raise
                self.begin(lane)
            go_on = self.step

    def end_step(self) -> None:
        """What a process that ended left of its last step."""
        for event in self.run.talk.returned[-1:]:
            self.run.stop_if_met(event.call.name == SUBMIT and event.ok)
        if self.run.talk.unanswered:
            self.nudge()
        for call in self.run.talk.pending:
            self.run.act(self.run.talk.step, call)

    def step(self) -> None:
        if dimension := self.run.meter.over():
            raise Stopped(f"budget: {dimension}")
        if (said := self.strategy.next(self.run.state, self.run.talk)) is not None:
            return self.follow(said)
        asked_at = self.run.clock()
        turn = self.ask(asked_at)
        if turn.stop == REPLAY_END:
            raise Stopped("model_stopped")
        step = self.run.heard(turn, asked_at)
        if not turn.tool_calls:
            return self.nudge()
        for call in turn.tool_calls:
            self.run.act(step, call)

    def follow(self, said: Step) -> None:
        """Do what the strategy says."""
        match said:
            case Stop():
                raise Stopped(said.reason)
            case Judge():
                asked_at, asked = self.run.clock(), judge.question(self.run.state, self.run.talk, self.run.record)
                self.run.heard(self.model.reply(asked, ()), asked_at, "judge", asked)
            case Begin():
                self.begin(said)
            case Restart():
                self.reset("strategy", said)
            case Say():
                self.run.append(UserMessage(at=self.run.clock(), text=said.text, topic=said.topic))

    def begin(self, said: Begin) -> None:
        """A lane, in the conversation and for the tools."""
        text, number, record = said.text, self.run.state.lane.number + 1, self.run.record
        if said.candidate:
            text = f"{text}\n\n{branched(said.candidate, self.run.state, self.run.talk, record)}"
        self.run.append(
            LaneStarted(at=self.run.clock(), lane=number, text=text, topic=said.topic, candidate=said.candidate)
        )
        self.run.session.begin_lane(record.candidate(said.candidate) if said.candidate else None)

    def ask(self, asked_at: float) -> Turn:
        self.fit()
        left_out = self.run.talk.since_reset
        try:
            return self.reply(asked_at)
        except ContextOverflowError:
            if not left_out:
                raise  # there is nothing to leave out
            self.reset("overflow")
            return self.reply(asked_at)

    def reply(self, asked_at: float) -> Turn:
        try:
            return self.model.reply(self.run.talk.messages, self.run.schemas())
        except ContextOverflowError as error:
            if error.cut is not None:  # it is paid for
                self.run.heard(error.cut, asked_at)
            raise

    def fit(self) -> None:
        """Make a conversation that has become long shorter: old results first, at the limit all of it."""
        talk, limit = self.run.talk, self.run.config.context_tokens
        through = talk.step - KEPT_STEPS
        if talk.turn is not None and talk.turn.usage.input_tokens > limit and talk.since_reset >= LEAST_LEFT_OUT:
            self.reset("long")
        elif talk.grown > limit / 2 and talk.gain(through) >= LEAST_GAIN:
            self.run.append(ResultsShortened(at=self.run.clock(), through=through))

    def reset(self, reason: Literal["long", "overflow", "strategy"], said: Say | None = None) -> None:
        head, topic = (said.text, said.topic) if said else (HEAD, "")
        text = f"{head}\n\n{written(self.run.state, self.run.talk, self.run.record)}\n\n{self.run.left()}"
        self.run.append(ContextReset(at=self.run.clock(), reason=reason, text=text, topic=topic))

    def nudge(self) -> None:
        if self.run.talk.nudges == MAX_NUDGES:
            raise Ended("model_stopped")
        self.run.append(UserMessage(at=self.run.clock(), text=f"{NUDGE}\n\n{self.run.left()}"))
