"""What persons ask of a run that goes on, taken from its folder: hints, an edited candidate, pause, resume, cancel."""

from __future__ import annotations

import ctypes
import difflib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from harness.types import Candidate
from runs import control
from runs.control import Pending
from runs.events import PersonActed

if TYPE_CHECKING:
    from agent.running import Running

POLL_S = 0.2
"""Between looks into the folder while a run is held, or is graded."""
_SHOWN = 20_000
"""Characters of an edit that are shown to the model; `read` shows all."""
HINT = "A person who follows this run (neither the loop nor a tool) says:"
EDITED = "A person who follows this run has replaced the candidate. It is now attempt {number}, not evaluated yet."
UNCHANGED = "A person who follows this run has sent a candidate that is the same text as the current one."


class Inbox:
    """Event first, then the effect, then the file is deleted: a process that is killed in between neither loses a
    request nor applies it twice, because the event has its id."""

    def __init__(self, run: Running) -> None:
        self._run = run

    def take(self, *, cancel_only: bool = False) -> None:
        """Record and do what was asked for, in order; nothing that comes after a cancel. `cancel_only`: all else has
        its place between steps."""
        for asked in self._cancels() if cancel_only else control.pending(self._run.record.path):
            if self._run.state.cancelled:
                return
            self._take(asked)

    def asks_for_no_grade(self) -> bool:
        """Whether the run has been cancelled twice. Safe to call from another thread."""
        return len(self._cancels()) + self._run.state.cancelled >= 2

    def clear_cancels(self) -> None:
        """Record those that came too late to be obeyed: left there they would end a run that is resumed."""
        for asked in self._cancels():
            self._take(asked)

    def _cancels(self) -> list[Pending]:
        return [asked for asked in control.pending(self._run.record.path) if asked.action == "cancel"]

    def _take(self, asked: Pending) -> None:
        run = self._run
        if asked.id not in run.state.taken:
            event = self._event(asked)
            run.append(event)
            if event.candidate is not None and asked.request is not None:
                run.session.write(asked.request.text)
        control.remove(run.record.path, asked.id)

    def _event(self, asked: Pending) -> PersonActed:
        at, step, request = self._run.clock(), self._run.talk.step, asked.request
        if request is None:
            return PersonActed(at=at, step=step, request=asked.id, action="refused", text=asked.fault)
        if request.action == "hint":
            told = f"{HINT}\n\n{request.text}"
            return PersonActed(at=at, step=step, request=asked.id, action="hint", text=request.text, told=told)
        if request.action == "candidate":
            candidate = Candidate(source=request.text, backend=self._run.config.backend)
            told = self._replaced(candidate)
            self._run.record.save_candidate(candidate)
            return PersonActed(
                at=at, step=step, request=asked.id, action="candidate", told=told, candidate=candidate.hash
            )
        return PersonActed(at=at, step=step, request=asked.id, action=request.action)

    def _replaced(self, candidate: Candidate) -> str:
        """What the model is told of a candidate: what has changed, or the text if that is shorter."""
        attempts = self._run.state.lane.attempts
        if attempts and attempts[-1].candidate == candidate.hash:
            return UNCHANGED
        source, number = candidate.source, 1
        shown, what = f"```python\n{source}\n```", "Its text"
        if attempts:
            number = attempts[-1].number + 1
            before = self._run.record.candidate(attempts[-1].candidate).source.splitlines()
            lines = difflib.unified_diff(before, source.splitlines(), "before", "now", lineterm="")
            diff = "```diff\n" + "\n".join(lines) + "\n```"
            if len(diff) < len(shown):
                shown, what = diff, "What changed"
        cut = "" if len(shown) <= _SHOWN else "\n[cut: `read` shows all]"
        return f"{EDITED.format(number=number)} {what}:\n\n{shown[:_SHOWN]}{cut}"


@contextmanager
def interrupted_if(asked: Callable[[], bool]) -> Iterator[None]:
    """Raises KeyboardInterrupt inside, in whatever thread this is, once `asked()` is true."""
    thread, over = ctypes.c_ulong(threading.get_ident()), threading.Event()
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc

    def watch() -> None:
        while not over.wait(POLL_S):
            if asked():
                raise_in(thread, ctypes.py_object(KeyboardInterrupt))
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        raise_in(thread, None)  # if it was raised too late to be seen inside
