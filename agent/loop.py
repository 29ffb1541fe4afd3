"""The agentic loop: ask the model, run its tool calls, until a reason to stop; then the harness grades the best."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal

from agent import strategies
from agent.cap import Cap
from agent.conversation import Conversation
from agent.models.base import ContextOverflowError, Model, ReplyCutError
from agent.models.replay import REPLAY_END
from agent.running import Running, Session, Stopped, Toolbox
from agent.state import HEAD, written
from agent.strategies.base import Restart, Say, Stop, Strategy
from harness.errors import UsageError
from runs.events import ContextReset, Event, ModelReplied, RunConfig, RunResumed, RunStarted, UserMessage
from runs.fold import Folding, Run, folding
from runs.messages import Message, Turn
from runs.record import Record

MAX_NUDGES = 2
"""Replies without a tool call, in a row, that are answered; one more ends the run."""
LEAST_LEFT_OUT = 6
"""Messages that make a summary worth while: it may be long itself."""
CUT = "cut"
"""`Turn.stop` of a reply that was given up because the budget ended; its usage is an estimate where the provider had
not told it yet."""
SUBMIT = "submit"
"""The tool whose success ends a run."""
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
    cap: Cap | None = None,
) -> Run:
    """One whole run, recorded step by step. Ctrl-C ends it with the reason `interrupted` and returns.

    Raises UsageError, before anything is recorded, for a limit in USD on a model whose price is unknown. An exception
    that nothing here is meant to answer is recorded as the reason and raised again. The caller closes the record.
    """
    in_usd = config.budget.usd is not None or (cap is not None and cap.limits.usd is not None)
    if in_usd and not model.priced():
        raise UsageError(
            f"the price of {model.name} is unknown, so a limit in USD cannot be kept: limit tokens or steps"
        )
    started = RunStarted(
        at=clock(), run_id=record.run_id, config=config, prompts_hash=prompts_hash, messages=tuple(messages)
    )
    loop = _loop(model, Folding(started), Conversation(), session, record, on_event, toolbox, clock, cap)
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
    cap: Cap | None = None,
) -> Run:
    """Go on with a run whose process ended before it finished: in the same record, no reply asked for twice, tool calls
    of which no result was recorded made again. `session` has been restored from the same events. Otherwise as
    `run_loop`."""
    events = list(record.events())
    loop = _loop(model, folding(events), Conversation(events), session, record, on_event, toolbox, clock, cap)
    loop.run.append(RunResumed(at=clock()))
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
    cap: Cap | None,
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
        clock=clock,
        cap=cap,
    )
    return _Loop(model, strategy, run)


class _Loop:
    def __init__(self, model: Model, strategy: Strategy, run: Running) -> None:
        self.model = model
        self.strategy = strategy
        self.run = run

    def lead(self) -> None:
        """Until the run is to end. Raises Stopped or ModelError."""
        self.end_step()
        while True:
            self.step()

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
        self.follow(self.strategy.next(self.run.state, self.run.talk))
        asked = self.run.clock()
        cut: ReplyCutError | None = None
        try:
            turn = self.ask()
        except ReplyCutError as error:  # paid for, but not to be acted on
            cut, usage = error, error.usage
            turn = Turn(usage=usage, cost_usd=self.model.cost_usd(usage), waited_s=error.waited_s, stop=CUT)
        if turn.stop == REPLAY_END:
            raise Stopped("model_stopped")
        self.run.meter.add_turn(turn)
        step, now = self.run.meter.spend.steps, self.run.clock()
        self.run.append(ModelReplied(at=now, step=step, turn=turn, seconds=now - asked))
        if cut is not None:
            raise cut
        if not turn.tool_calls:
            return self.nudge()
        for call in turn.tool_calls:
            self.run.act(step, call)

    def follow(self, said: Say | Stop | None) -> None:
        """Do what the strategy says."""
        if isinstance(said, Stop):
            raise Stopped(said.reason)
        if isinstance(said, Restart):
            self.reset("strategy", said)
        elif said is not None:
            self.run.append(UserMessage(at=self.run.clock(), text=said.text, topic=said.topic))

    def ask(self) -> Turn:
        last = self.run.talk.turn
        long = last is not None and last.usage.input_tokens > self.run.config.context_tokens
        if long and self.run.talk.since_reset >= LEAST_LEFT_OUT:
            self.reset("long")
        try:
            return self.request()
        except ContextOverflowError:
            if not self.run.talk.since_reset:
                raise  # there is nothing to leave out
            self.reset("overflow")
            return self.request()

    def request(self) -> Turn:
        bounds = self.run.meter.request(self.run.talk.expected, self.model.cost_usd)
        held_s = bounds.use.waited_s  # for other runs' requests
        try:
            turn = self.model.reply(self.run.talk.messages, self.run.schemas(), bounds)
        except ReplyCutError as cut:
            cut.waited_s += held_s
            raise
        return turn.model_copy(update={"waited_s": turn.waited_s + held_s}) if held_s else turn

    def reset(self, reason: Literal["long", "overflow", "strategy"], said: Say | None = None) -> None:
        head, topic = (said.text, said.topic) if said else (HEAD, "")
        text = f"{head}\n\n{written(self.run.state, self.run.talk, self.run.record)}\n\n{self.run.meter.remaining()}"
        self.run.append(ContextReset(at=self.run.clock(), reason=reason, text=text, topic=topic))

    def nudge(self) -> None:
        if self.run.talk.nudges == MAX_NUDGES:
            raise Stopped("model_stopped")
        self.run.append(UserMessage(at=self.run.clock(), text=f"{NUDGE}\n\n{self.run.meter.remaining()}"))
