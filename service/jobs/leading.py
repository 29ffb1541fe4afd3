"""One run's job from its turn to its end, in whatever thread it is given."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from sqlalchemy.orm import Session

from agent.models import redaction
from harness.errors import HarnessError, RingsmithError, UsageError
from harness.types import Frozen
from problems.spec import ProblemError
from runs import control
from runs.attempts import Attempt
from runs.events import CANCELLED, Event, RunConfig, RunFinished, RunStarted
from runs.record import Record
from service.errors import UnknownError
from service.jobs.index import RunsIndex
from service.jobs.pools import Pools
from service.jobs.store import State, Store
from service.jobs.tables import JobRow, RunIndex
from service.jobs.tail import Tail, Tails
from service.run import resume_one, run_one

BEGINS_FROM = "The candidate that this run begins with is attempt {attempt} of run {run_id}{summary}."

log = logging.getLogger("ringsmith.jobs")


class Beginning(Frozen):
    """The attempt of another run that a run begins with."""

    run_id: str
    attempt: int
    summary: str
    source: str
    hint: str = ""

    @classmethod
    def of(cls, record: Record, attempts: Sequence[Attempt], number: int, lane: int | None, hint: str) -> Self:
        """From the attempt of that number; `attempts` are the record's so far. Raises UnknownError if there is none,
        UsageError if several lanes have one and `lane` does not say which."""
        found = [a for a in attempts if a.number == number and lane in (None, a.lane)]
        if not found:
            raise UnknownError(f"run {record.run_id} has no attempt {number}{f' in lane {lane}' if lane else ''}")
        lanes = sorted({a.lane for a in found})
        if len(lanes) > 1:
            raise UsageError(f"attempt {number} is in lanes {', '.join(map(str, lanes))}: say which lane")
        source = record.candidate(found[-1].candidate).source
        return cls(run_id=record.run_id, attempt=number, summary=found[-1].summary, source=source, hint=hint)

    def requests(self) -> tuple[control.Request, ...]:
        """What is left in the new run's folder: the run takes it before its first step."""
        told = BEGINS_FROM.format(
            attempt=self.attempt, run_id=self.run_id, summary=f" ({self.summary})" if self.summary else ""
        )
        hint = f"{told}\n{self.hint}".strip()[: control.MAX_HINT]
        return (
            control.Request(action="candidate", text=self.source),
            control.Request(action="hint", text=hint),
        )


class RunJob(Frozen):
    """`JobRow.asked` of a run."""

    config: RunConfig
    begin: Beginning | None = None


class Leading:
    """Thread-safe."""

    def __init__(
        self,
        root: Path,
        store: Store,
        index: RunsIndex,
        tails: Tails,
        pools: Pools,
        stopping: threading.Event,
        address: str = "",
    ) -> None:
        """`address` is that of the pools' sandboxes."""
        self._root, self._store, self._index, self._tails = root, store, index, tails
        self._pools, self._stopping, self._address = pools, stopping, address
        self.active: set[str] = set()
        """Runs that are led, or wait for their turn."""
        self._led: set[str] = set()
        self._cancelled: set[str] = set()
        self._lock = threading.Lock()

    def do(self, run_id: str, again: bool) -> None:
        """Lead the run to its end, or until the server stops. `again`: an earlier process has begun it. Never
        raises."""
        try:
            job = self._store.job("run", run_id)
            if job is None or job.state not in ("queued", "running"):
                return
            self._store.set_job("run", run_id, "running")
            self._led.add(run_id)
            state, reason = self._led_to_end(run_id, RunJob.model_validate_json(job.asked), again)
            if state is not None:
                self._store.set_job("run", run_id, state, error=reason)
                self._index.set_state(run_id, CANCELLED if reason == CANCELLED else "failed", reason)
            self._index.refresh_one(self._root / run_id)
        except Exception as error:  # the database: the next server finds out from the record how far it came
            log.error("run %s: %s", run_id, redaction.from_error(str(error)))
        finally:
            with self._lock:
                self._led.discard(run_id)
                self._cancelled.discard(run_id)
                self.active.discard(run_id)

    def cancel(self, run_id: str, session: Session) -> None:
        """Of a run that has no record yet: in the database at once if it waits for its turn; if it is being begun, it
        ends before its first step."""
        with self._lock:
            self._cancelled.add(run_id)
        job = session.get(JobRow, ("run", run_id))
        if job is not None and job.state == "queued":
            job.state, job.error, job.ended_at = "ended", CANCELLED, time.time()
            row = session.get(RunIndex, run_id)
            if row is not None:
                row.state, row.reason = CANCELLED, CANCELLED

    def anyone_acts(self) -> bool:
        """Whether any run is led that is not paused: one that is paused has nothing to end, and stays so."""
        return any(not self._paused(self._tails.get(self._root / run_id)) for run_id in list(self._led))

    def _led_to_end(self, run_id: str, asked: RunJob, again: bool) -> tuple[State | None, str]:
        """The job's new state and why; None: as it was, because the server stops."""
        try:
            reason = self._lead(run_id, asked, again)
        except KeyboardInterrupt:
            reason = "interrupted"
        except (RingsmithError, ProblemError) as error:
            return "failed", redaction.from_error(str(error))
        except Exception as error:
            log.exception("run %s", run_id)
            return "failed", f"internal: {type(error).__name__}"
        if reason == "interrupted" and self._stopping.is_set():
            return None, ""
        return ("failed", reason) if reason.startswith("error:") else ("ended", reason)

    def _lead(self, run_id: str, asked: RunJob, again: bool) -> str:
        """Returns why it ended, as in `RunFinished`."""
        path, config = self._root / run_id, asked.config
        tail = self._tails.get(path)
        tail.catch_up()
        if (end := tail.end()) is not None and end.final:
            return end.reason
        if not len(tail):
            if run_id in self._cancelled:
                return CANCELLED
            # What a process left that was killed before the first event.
            shutil.rmtree(path, ignore_errors=True)

        def on_event(event: Event) -> None:
            if isinstance(event, RunStarted) and not resumed:
                self._begin_with(path, asked)
            if self._stopping.is_set() and not isinstance(event, RunFinished):
                raise KeyboardInterrupt  # as Ctrl-C in a run of its own: recorded, and gone on with later

        resumed = len(tail) > 0
        with self._pools.lent(config.platform, config.world_size, config.isolation) as pool:
            if resumed:
                if len(tail) == 1:
                    self._begin_with(path, asked)
                if again and self._paused(tail) and not self._pending(path) & {"resume", "cancel"}:
                    # A run that is gone on with is no longer paused; this one nobody has asked to go on.
                    control.send(path, control.Request(action="pause"))
                run = resume_one(Record(path), on_event=on_event, sandbox=pool, where=self._address)
            else:
                run = run_one(config, root=self._root, on_event=on_event, sandbox=pool, run_id=run_id)
        return run.reason or "interrupted"

    def _begin_with(self, path: Path, asked: RunJob) -> None:
        """Leave what the run is to find before its first step, unless it is there already."""
        waiting = self._pending(path)
        for request in asked.begin.requests() if asked.begin else ():
            if request.action not in waiting:
                control.send(path, request)
        with self._lock:
            cancelled = path.name in self._cancelled
        if cancelled:
            control.send(path, control.Request(action="cancel"))

    @staticmethod
    def _pending(path: Path) -> set[str]:
        return {pending.action for pending in control.pending(path) if pending.action}

    @staticmethod
    def _paused(tail: Tail) -> bool:
        try:
            state = tail.folding()
        except (HarnessError, RingsmithError, OSError):
            return False
        return state is not None and state.paused
