"""A run led by an agent from outside (a coding agent that calls our tools through MCP): the same tools, budget, record,
persons and official evaluation as in the loop; its thinking and what that costs are its own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from agent.conversation import Conversation
from agent.running import Running, Session, Stopped, Toolbox
from agent.state import figures, written
from harness.errors import UsageError
from runs.events import AgentCalled, Event, RunConfig, RunResumed, RunStarted
from runs.fold import Folding, Run, folding
from runs.messages import Message, ToolCall
from runs.record import Record

PREFIX = "external:"
"""Of `RunConfig.model`; the agent's name follows."""
RESTARTED = "Ringsmith was restarted since your last call, {name} (step {step}). That call returned:"
SO_FAR = "# This run so far\n\nEverything below was measured. Go on from here."

MAX_NOTE = 20_000
"""Characters of it."""


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
        self._run = Running(
            session=session,
            record=record,
            on_event=on_event,
            toolbox=toolbox,
            state=state,
            talk=talk,
            clock=clock,
            wait=self._wait,
        )
        self._lock = threading.Lock()
        self._leaving = threading.Event()
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
            before = len(self._run.talk.messages)
            self._guarded(lambda: self._step(name, raw))
            told = [m.text for m in self._run.talk.messages[before:] if m.role == "tool"]
            ok = bool(told) and self._run.talk.returned[-1].ok
            if self._ended is None:
                return Answer(told[0], ok, ended=False)
            return Answer("\n\n".join([*told, _over(self._ended, self._run.record)]), ok, ended=True)

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

    def _go_on(self) -> None:
        self._guarded(lambda: self._run.end_step(*self._run.talk.news))
        for event in self._run.talk.returned[-1:]:
            self._note = f"{RESTARTED.format(name=event.call.name, step=event.step)}\n{event.text[:MAX_NOTE]}"

    def _guarded(self, what: Callable[[], None]) -> None:
        """What ends the run, ends it here. Raises again what is not its normal end."""
        try:
            what()
        except BaseException as by:
            self._end(by)
            if not isinstance(by, Stopped):
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
            raise Stopped("model_stopped")


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
