"""A run led from outside, by a coding agent that calls our tools (MCP) or by a person (the debugger): the same tools,
budget, record, persons and official evaluation as in the loop; its thinking and what that costs are its own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from agent.asked_step import make_step, without_submit
from agent.budget import CALLS, STOPPED
from agent.conversation import Conversation
from agent.models.base import Model, ModelError
from agent.running import Running, Session, Stopped, Toolbox
from agent.state import figures, written
from harness.errors import BudgetEndedError, UsageError
from runs.events import AgentCalled, Event, RunConfig, RunResumed, RunStarted, ToolReturned
from runs.fold import Folding, Run, folding
from runs.messages import Message, ToolCall
from runs.record import Record

PREFIX = "external:"
"""Of `RunConfig.model`; the agent's name follows."""
RESTARTED = "Ringsmith was restarted since your last call, {name} (step {step}). That call returned:"
SO_FAR = "# This run so far\n\nEverything below was measured. Go on from here."

MAX_NOTE = 20_000
"""Characters of it."""
GIVEN_UP = "The request was broken off; what was written of the reply is paid for, and nothing of it was acted on."


@dataclass(frozen=True)
class Answer:
    """What the agent is told."""

    text: str
    ok: bool
    """False if the call was wrong, or no longer made."""
    ended: bool
    """Whether the run has ended: no further call will be made."""


class External:
    """Thread-safe: calls are made one after the other. Ends as the `with` block does: with the official evaluation of
    the best candidate, or, on Ctrl-C and errors, without."""

    def __init__(
        self,
        state: Folding,
        talk: Conversation,
        session: Session,
        record: Record,
        on_event: Callable[[Event], None],
        *,
        toolbox: Toolbox,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Use `start` or `resume`."""
        self._on_event = on_event
        self._returned: list[ToolReturned] = []
        """Of the step that is under way."""
        self._stop = threading.Event()
        self._run = Running(
            session=session,
            record=record,
            on_event=self._happened,
            toolbox=toolbox,
            state=state,
            talk=talk,
            clock=clock,
            wait=self._wait,
            stopped=self._stop.is_set,
            steps=CALLS,
        )
        self._lock = threading.Lock()
        self._leaving = threading.Event()
        self._dropped = False
        """Left without grading."""
        self._ended: Run | None = None
        self._note = ""

    @classmethod
    def start(
        cls,
        config: RunConfig,
        session: Session,
        record: Record,
        messages: Sequence[Message],
        on_event: Callable[[Event], None],
        *,
        prompts_hash: str,
        toolbox: Toolbox,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """Raises UsageError, before anything is recorded, for what cannot be kept of the configuration (`check`)."""
        check(config)
        started = RunStarted(
            at=clock(), run_id=record.run_id, config=config, prompts_hash=prompts_hash, messages=tuple(messages)
        )
        agent = cls(Folding(started), Conversation(), session, record, on_event, toolbox=toolbox, clock=clock)
        agent._run.append(started)
        return agent

    @classmethod
    def resume(
        cls,
        session: Session,
        record: Record,
        on_event: Callable[[Event], None],
        *,
        toolbox: Toolbox,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """Go on in the same record. A call without a recorded result is made again; what it returned is told with the
        next one. `session` has been restored from the same events."""
        events = list(record.events())
        agent = cls(folding(events), Conversation(events), session, record, on_event, toolbox=toolbox, clock=clock)
        agent._run.append(RunResumed(at=clock()))
        agent._go_on()
        return agent

    @property
    def messages(self) -> tuple[Message, ...]:
        """The task, as a model of the loop would be told it."""
        return self._run.record.started().messages

    @property
    def ended(self) -> Run | None:
        """The run once it has ended."""
        return self._ended

    def schemas(self) -> list[dict[str, Any]]:
        """Name, description and parameters of every tool."""
        return self._run.schemas()

    def so_far(self) -> str:
        """What was tried and measured, and what is left of the budget: for an agent that is new to a run that was
        resumed, or has lost its context. Waits while a call is made."""
        with self._lock:
            run = self._run
            tried = [SO_FAR, written(run.state, run.talk, run.record)] if run.state.attempts else []
            return "\n\n".join([*tried, _over(self._ended, self._run.record) if self._ended else run.left()])

    def call(self, name: str, arguments: dict[str, Any] | str) -> Answer:
        """Make a tool call: one step. Waits while another is made, and while a person has the run paused. Once a limit
        is reached or the run has ended no call is made and the answer says so."""
        raw = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        with self._lock:
            if self._ended is not None:
                return Answer(_over(self._ended, self._run.record), ok=False, ended=True)
            self._stop.clear()
            return self._answer(lambda: self._step(name, raw))

    def ask(self, model: Model) -> Answer:
        """Ask a model for one step: it is told what has happened so far, its reply is recorded and paid for, its calls
        are made. `submit` is not offered: the end is the leader's. A provider's failure, and a reply that is broken off
        (`stop`), are answers that are not ok. Waits as `call`."""
        with self._lock:
            if self._ended is not None:
                return Answer(_over(self._ended, self._run.record), ok=False, ended=True)
            self._stop.clear()
            failure: list[str] = []

            def asked() -> None:
                try:
                    make_step(model, self._run)
                except ModelError as error:
                    failure.append(str(error))
                except BudgetEndedError as error:
                    if error.limit != STOPPED:
                        raise
                    failure.append(GIVEN_UP)

            answer = self._answer(asked)
            return replace(answer, text="\n\n".join([*failure, answer.text]).strip(), ok=False) if failure else answer

    def stop(self) -> None:
        """Break off the call or request that is under way; the run goes on. From another thread; nothing happens where
        nothing is under way, or only the official evaluation is."""
        self._stop.set()

    def leave(self) -> Run:
        """End the run without grading (reason `interrupted`: it can be resumed), if it has not ended by itself. What is
        under way is broken off."""
        self._dropped = True
        self._leaving.set()
        self._stop.set()
        with self._lock:
            if self._ended is None:
                self._end(KeyboardInterrupt())
            assert self._ended is not None
            return self._ended

    def close(self) -> Run:
        """End the run, if it has not ended by itself: the agent has left. A call that is being made is waited for."""
        self._leaving.set()
        with self._lock:
            if self._ended is None:
                self._guarded(self._leave)
            assert self._ended is not None
            return self._ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        self._leaving.set()
        with self._lock:
            if self._ended is None:
                self._end(error)

    def _step(self, name: str, arguments: str) -> None:
        run = self._run
        run.heed()
        if dimension := run.meter.over():
            raise Stopped(f"budget: {dimension}")
        run.meter.add_call()
        step = run.meter.spend.steps
        call = ToolCall(id=f"call_{step}", name=name, arguments=arguments)
        run.append(AgentCalled(at=run.clock(), step=step, call=call))
        note, self._note = self._note, ""
        run.act(step, call, *filter(None, [*run.talk.news, note]))

    def _answer(self, what: Callable[[], None]) -> Answer:
        """Do it, and say what the tools said."""
        self._returned = []
        self._guarded(what)
        ok = all(event.ok for event in self._returned)
        texts = [event.text for event in self._returned]
        if self._ended is None:
            return Answer("\n\n".join(texts), ok, ended=False)
        return Answer("\n\n".join([*texts, _over(self._ended, self._run.record)]), ok and bool(texts), ended=True)

    def _happened(self, event: Event) -> None:
        if isinstance(event, ToolReturned):
            self._returned.append(event)
        self._on_event(event)

    def _go_on(self) -> None:
        by_model = self._run.talk.called is None and bool(self._run.talk.pending)
        with without_submit(self._run) if by_model else nullcontext():
            self._guarded(lambda: self._run.end_step(*self._run.talk.news))
        for event in self._run.talk.returned[-1:]:
            self._note = f"{RESTARTED.format(name=event.call.name, step=event.step)}\n{event.text[:MAX_NOTE]}"

    def _guarded(self, what: Callable[[], None]) -> None:
        """What ends the run, ends it here. Raises again what is not its normal end."""
        try:
            what()
        except BaseException as by:
            self._end(by)
            if not isinstance(by, Stopped | BudgetEndedError) and not self._dropped:
                raise

    def _end(self, by: BaseException) -> None:
        try:
            self._run.end(by)
        finally:
            self._ended = self._run.state.run()

    def _leave(self) -> None:
        self._run.obey_cancel()
        if dimension := self._run.meter.over():
            raise Stopped(f"budget: {dimension}")
        raise Stopped("model_stopped")

    def _wait(self, seconds: float) -> None:
        if self._leaving.wait(seconds):
            raise KeyboardInterrupt if self._dropped else Stopped("model_stopped")


def check(config: RunConfig) -> None:
    """Raises UsageError for what cannot be kept where the agent's thinking is not ours."""
    if not config.model.startswith(PREFIX) or config.model == PREFIX:
        raise UsageError(f"{config.model!r} is not an agent from outside: write {PREFIX}NAME")
    if config.budget.tokens is not None or config.budget.usd is not None:
        raise UsageError("an agent from outside is not asked by us: its tokens and USD cannot be limited, calls can")
    if config.strategy != "loop":
        raise UsageError(f"strategy {config.strategy!r} cannot lead an agent from outside: leave it out")


def _over(run: Run, record: Record) -> str:
    """The end, as the agent is told it."""
    text = f"The run has ended ({run.reason}); no further call is made."
    graded = run.official
    if graded is None:
        return f"{text} No candidate was graded."
    result = figures(graded.measurement) if graded.measurement else graded.summary
    kept = record.path / "candidates" / f"{graded.candidate}.py"
    return f"{text} Official evaluation of the best candidate: {graded.verdict}; {result}\nIt is kept as {kept}."
