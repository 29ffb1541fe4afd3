"""One session of the debugger: sandbox, run and screen brought up, and the run left in order, however it ends."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from agent import models
from agent.external import External
from agent.models.base import Model
from agent.models.replay import Replay
from harness.errors import HarnessError, UsageError
from harness.evaluate import reference_candidate
from problems.catalogue import find
from runs.events import Event, RunConfig
from runs.fold import Run
from runs.record import Record
from service.debugger.candidate_file import CandidateFile
from service.debugger.journal import Journal
from service.debugger.session import Debugging
from service.progress import LiveLine, stderr_console

if TYPE_CHECKING:
    from textual.app import App

Opened = Callable[[Callable[[Event], None]], AbstractContextManager[External]]
"""`service.run.open_external` or `reopen_external` with all but `on_event`."""


def lead(
    opened: Opened,
    config: RunConfig,
    *,
    root: Path,
    model: str | None,
    file: Path | None,
    source: str | None,
    dark: bool,
) -> tuple[Run, bool]:
    """Until the person leaves: the run, and whether a signal ended it. `root` is the record's folder's;
    `file` is the candidate's (None: one beside the record); `source` is what it begins with where it does not exist.

    Raises UsageError before any process is started if textual is missing or the model cannot be asked here; otherwise
    as `opened`."""
    try:
        from service.debugger.app import Debugger
    except ImportError:
        raise UsageError("the debugger needs textual: pip install 'ringsmith[debug]'") from None
    journal = Journal()
    asked = models.make(model, journal.wrote, problem=config.problem, sample=config.sample) if model else None
    if file is not None and file.exists():
        _readable(CandidateFile(file))
    line = LiveLine(stderr_console())
    line.show("bringing up the ranks")
    try:
        with opened(journal) as agent:
            line.clear()
            record = Record.open(root / journal.run_id)
            candidate = CandidateFile(file or record.path / "debug" / "candidate.py")
            _begin(candidate, journal, record, source or reference_candidate(find(config.problem, config.suite)).source)
            debugging = Debugging(agent, journal, record, candidate, _skipped(asked, journal))
            try:
                hung_up = _shown(Debugger(debugging, dark=dark))
            finally:
                debugging.leave()
            assert agent.ended is not None
            return agent.ended, hung_up
    finally:
        line.clear()


def _begin(candidate: CandidateFile, journal: Journal, record: Record, source: str) -> None:
    """A file that exists is what the person works on: it is left as it is."""
    if not candidate.exists():
        candidate.write(record.candidate(journal.current).source if journal.current else source)
    _readable(candidate)


def _readable(candidate: CandidateFile) -> None:
    candidate.read()
    if candidate.fault:
        raise UsageError(candidate.fault)


def _skipped(model: Model | None, journal: Journal) -> Model | None:
    if isinstance(model, Replay):
        model.skip(journal.replies)
    return model


def _shown(app: App[str]) -> bool:
    """Whether a signal has ended it. Signals end the process's other work as before. Raises HarnessError for a bug of
    the screen, which has said where."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        answer = app.run()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if app.return_code:
        raise HarnessError("the debugger's screen failed (a bug); --resume goes on with the run")
    return answer == "hangup"
