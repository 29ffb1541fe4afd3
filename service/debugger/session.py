"""What the debugger's keys do: calls of the run's tools and requests to a model, one at a time, in a thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.external import Answer, External
from agent.models.base import Model
from harness.errors import RingsmithError, UsageError
from harness.types import Candidate
from runs import control
from runs.control import Request
from runs.record import Record
from service.debugger.candidate_file import CandidateFile
from service.debugger.journal import Journal

SUBMIT = "official evaluation"


@dataclass
class Doing:
    """What is under way."""

    label: str
    future: Future[str]
    since: float
    """By `time.monotonic`."""
    stopping: bool = False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since


class Debugging:
    """Its methods are called from one thread (the screen's) and return at once; `poll` tells what became of them.

    The candidate is the file: what it holds is recorded as an attempt (`write_candidate`) before the next call."""

    def __init__(
        self, agent: External, journal: Journal, record: Record, file: CandidateFile, model: Model | None = None
    ) -> None:
        self.agent, self.journal, self.record, self.file, self.model = agent, journal, record, file, model
        self.doing: Doing | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="debugger")

    def call(self, tool: str, **arguments: Any) -> None:
        """Raises UsageError, as all that follow, while something is under way or if the run has ended."""
        self._begin(tool, lambda: self._after_edits(lambda: self.agent.call(tool, arguments)))

    def ask(self, hint: str = "") -> None:
        """Ask the model for one step, with something said to it if there is something."""
        model = self.model
        if model is None:
            raise UsageError("no model to ask: start with --model PROVIDER/MODEL")
        if len(hint) > control.MAX_HINT:
            raise UsageError(f"a hint of {len(hint)} characters; at most {control.MAX_HINT}")

        def step() -> Answer:
            if hint.strip():
                control.send(self.record.path, Request(action="hint", text=hint))
            return self.agent.ask(model)

        self._begin(f"asking {model.name}", lambda: self._after_edits(step))

    def branch(self, candidate: str) -> None:
        """Take an earlier text as the candidate. Edits that are in the file are recorded first, so nothing is lost."""
        source = self.source(candidate)

        def take() -> None:
            self.file.write(source)

        self._begin("branch", lambda: self._after_edits(take))

    def submit(self) -> None:
        """End the run with the official evaluation of its best candidate."""
        self._begin(SUBMIT, lambda: self._after_edits(lambda: self.agent.call("submit", {})))

    def stop(self) -> None:
        """Break off what is under way; the run goes on. Of an official evaluation: the run ends without it."""
        doing = self.doing
        if doing is None or doing.stopping:
            return
        doing.stopping = True
        if doing.label == SUBMIT:
            for _ in range(2):  # as a person does from another terminal: `runs cancel`, twice
                control.send(self.record.path, Request(action="cancel"))
        else:
            self.agent.stop()

    def poll(self) -> str | None:
        """None while nothing has come to its end since the last call; else what is to be said of it, "" for nothing.
        Raises what went wrong that is no RingsmithError."""
        doing = self.doing
        if doing is None:
            return None
        if not doing.future.done():
            if doing.stopping and doing.label != SUBMIT:
                self.agent.stop()  # again: one that comes between two calls is not heard
            return None
        self.doing = None
        try:
            return doing.future.result()
        except RingsmithError as error:
            return str(error)

    def leave(self) -> None:
        """End the run without grading, unless it has ended: it can be resumed. Waits for what is under way, which is
        broken off."""
        self.stop()
        self.agent.leave()
        self._thread.shutdown()

    def source(self, candidate: str) -> str:
        """Text of a recorded candidate. Raises UsageError."""
        return self.record.candidate(candidate).source

    def edited(self) -> bool:
        """Whether the file differs from the current attempt."""
        return self.hash(self.file.read()) != self.journal.current

    def hash(self, source: str) -> str:
        assert self.journal.state is not None  # the run has begun
        return Candidate(source=source, backend=self.journal.state.config.backend).hash

    def save(self, path: Path, source: str) -> None:
        """Raises UsageError."""
        CandidateFile(path.expanduser()).write(source)

    def _begin(self, label: str, what: Callable[[], str]) -> None:
        if self.doing is not None:
            raise UsageError(f"{self.doing.label} is under way: escape breaks it off")
        if self.agent.ended is not None:
            raise UsageError(f"the run has ended ({self.agent.ended.reason}): look, save, or q to quit")
        self.doing = Doing(label, self._thread.submit(what), time.monotonic())

    def _after_edits(self, what: Callable[[], Answer | None]) -> str:
        """In the thread: record what the file holds, do it, and put into the file what it made of the candidate."""
        text = self.file.read()
        if self.file.fault:
            raise UsageError(self.file.fault)
        if self.hash(text) != self.journal.current:
            written = self.agent.call("write_candidate", {"source": text})
            if not written.ok or written.ended:
                return written.text
        if self.doing is not None and self.doing.stopping and self.doing.label != SUBMIT:
            return "broken off"
        before = self.journal.current
        answer = what()
        said = "" if answer is None or answer.ok else answer.text
        if self.journal.current not in (None, before):
            assert self.journal.current is not None
            if self.file.read() == text:
                self.file.write(self.source(self.journal.current))
            else:
                said += "\nYou have edited the file meanwhile, so it was left as it is; b takes the newer attempt."
        return said.strip()
