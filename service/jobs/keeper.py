"""Leads the jobs of a server: begins what is asked for, goes on after a restart with what is not finished, and knows
the state of every run under its root. The doors of the process (HTTP, web pages) all act through one keeper."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sqlalchemy.orm import Session

from agent.external import PREFIX as EXTERNAL
from agent.models import redaction
from harness import platforms
from harness.errors import HarnessError, UsageError
from harness.sandboxes import open_pool
from harness.types import IsolationLevel, Request
from problems.catalogue import find
from runs.control import Action
from runs.events import RunConfig
from runs.record import Record, new_run_id
from service import entering
from service.errors import ConflictError, UnknownError
from service.jobs.crew import Crew
from service.jobs.evaluating import Evaluating, EvaluationJob
from service.jobs.index import REFRESH_S, RunsIndex, queued_row
from service.jobs.leading import Beginning, Leading, RunJob
from service.jobs.pools import MakePool, Pools
from service.jobs.store import Once, Store
from service.jobs.sweeps import Sweeps
from service.jobs.tables import JobRow, new_job
from service.jobs.tail import Tail, Tails
from service.options import HERE, Place
from service.plan import Wanted, model_names

STOP_S = 25.0
"""How long a run may still be in a call that cannot be broken off when the server ends; what it leaves is gone on with
at the next start."""
_FILES = ("replay:", "scripted:")

log = logging.getLogger("ringsmith.jobs")


class Keeper:
    """Thread-safe. `by` is the name of whoever asks; a request with a `Once` that has been carried out is answered as
    it was then. Raises UnknownError, ConflictError and other UsageErrors for what cannot be, HarnessError where disk
    or database fail."""

    def __init__(
        self,
        root: Path,
        store: Store,
        *,
        concurrency: int = 16,
        files: bool = False,
        place: Place = HERE,
        make_pool: MakePool | None = None,
    ) -> None:
        """`concurrency` runs are led at once, others wait; `files`: whether models and suites may be named that are
        read from files of this machine; `place`: where candidates are evaluated, wherever those of an earlier server
        were."""
        self.root, self.store, self.files, self.place = root.resolve(), store, files, place
        self.tails = Tails()
        self.index = RunsIndex(self.root, store, self.tails)
        self.pools = Pools(make_pool or partial(open_pool, place.address, access=place.access))
        self.stopping = threading.Event()
        self.runs = Crew("run", concurrency)
        self._evaluations = Crew("evaluation", 4)
        self._leading = Leading(self.root, store, self.index, self.tails, self.pools, self.stopping, place.address)
        self._evaluating = Evaluating(store, self.pools, self.stopping)
        self.sweeps = Sweeps(self.root, store, self.pools, self.stopping, place)
        self._lock: int | None = None

    # -- the process -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Take the root, and go on with what is not finished. Raises UsageError if another server has it."""
        self._lock = _take(self.root)
        self.store.forget_old_keys()
        for job in self.store.unfinished():
            if job.kind == "run":
                self._put_run(job.id, again=job.state == "running")
            elif job.kind == "evaluation":
                self._evaluations.put(lambda job_id=job.id: self._evaluating.do(job_id))  # type: ignore[misc]
            else:
                self.sweeps.go_on(job.id)
        threading.Thread(target=self._refresh, name="index", daemon=True).start()

    def close(self, wait_s: float = STOP_S) -> None:
        """End what goes on as interrupted, as Ctrl-C does; the next server goes on with it."""
        self.stopping.set()
        self.sweeps.stop()
        self.pools.stop()
        self.runs.stop(wait_s, self._leading.anyone_acts)
        for crew in (self._evaluations, self.sweeps.crew):
            crew.stop(wait_s)
        self.pools.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # -- runs --------------------------------------------------------------------------------------------------------

    def start(self, config: RunConfig, *, by: str = "", once: Once | None = None) -> str:
        """Begin a run; returns its id."""
        return self._begin(RunJob(config=config), by, once)

    def fork(
        self,
        run_id: str,
        attempt: int,
        *,
        lane: int | None = None,
        hint: str = "",
        change: Callable[[RunConfig], RunConfig] = lambda config: config,
        by: str = "",
        once: Once | None = None,
    ) -> str:
        """A new run that goes on from another one's attempt, with its settings but for `change`; returns its id. It
        counts as helped, as any run that was given a candidate."""
        tail = self.tail(run_id)
        state = tail.folding()
        if state is None:
            raise ConflictError(f"run {run_id} has no attempt yet")
        begin = Beginning.of(Record(tail.path), state.attempts, attempt, lane, hint)
        _no_keys(hint)
        config = change(state.config)
        if config.backend is not state.config.backend:
            raise UsageError(f"the attempt is written in {state.config.backend}: that cannot be changed")
        return self._begin(RunJob(config=config, begin=begin), by, once)

    def resume(self, run_id: str, *, by: str = "", once: Once | None = None) -> str:
        """Let a paused run go on, or go on with one whose process has ended; says what happens."""
        tail = self.tail(run_id)
        if self.is_active(run_id) or tail.is_live():
            return self.ask(run_id, "resume", once=once)
        if tail.has_final_end():
            raise ConflictError(f"run {run_id} has ended: there is nothing to go on with")
        if tail.path.parent != self.root:
            raise ConflictError(f"run {run_id} belongs to a sweep: resume that")
        config = Record(tail.path).started().config
        if config.model.startswith(EXTERNAL):
            raise ConflictError(f"run {run_id} is led by an agent from outside: the agent goes on with it")
        self._check(config)

        def act(session: Session) -> str:
            old = session.get(JobRow, ("run", run_id))
            if old is not None and old.state in ("queued", "running"):
                raise ConflictError(f"run {run_id} is about to go on")
            asked = old.asked if old is not None else RunJob(config=config).model_dump_json()
            session.merge(new_job("run", run_id, asked, old.by if old is not None else by))
            return "it goes on"

        said, replayed = self.store.once(once, act)
        if not replayed:
            self._put_run(run_id)
        return said

    def ask(self, run_id: str, action: Action, text: str = "", *, once: Once | None = None) -> str:
        """Leave a person's request for a run (`runs.control`); says when it is taken. A run that waits for its turn can
        only be cancelled."""
        _no_keys(text if action == "hint" else "")

        def act(session: Session) -> str:
            tail = self.tail(run_id)
            tail.catch_up()
            if len(tail):
                return entering.enter(Record(tail.path), action, text, led=self.is_active(run_id))[1]
            if action != "cancel" or not self.is_active(run_id):
                raise ConflictError(f"run {run_id} has not begun")
            self._leading.cancel(run_id, session)
            return "before it begins"

        said, _ = self.store.once(once, act)
        return said

    def tail(self, run_id: str) -> Tail:
        """Of a run's events. Raises UnknownError if there is no such run."""
        if Path(run_id).name == run_id != ".." and (self.root / run_id / "events.jsonl").is_file():
            return self.tails.get(self.root / run_id)
        if (row := self.index.find(run_id)) is not None:
            return self.tails.get(self.root / row.path)
        raise UnknownError(f"no run {run_id!r}")

    def is_active(self, run_id: str) -> bool:
        """Whether this keeper leads the run, or is about to."""
        return run_id in self._leading.active

    # -- evaluations -------------------------------------------------------------------------------------------------

    def evaluate(
        self, request: Request, isolation: IsolationLevel = "auto", *, by: str = "", once: Once | None = None
    ) -> str:
        """Evaluate a candidate without a model; returns the job's id."""
        self.allow("", request.suite)
        platforms.get(request.platform).check(request.world_size)
        job_id = f"e-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"
        asked = EvaluationJob(request=request, isolation=isolation).model_dump_json()

        def act(session: Session) -> str:
            session.add(new_job("evaluation", job_id, asked, by))
            return job_id

        answer, replayed = self.store.once(once, act)
        if not replayed:
            self._evaluations.put(lambda: self._evaluating.do(job_id))
        return answer

    def evaluation(self, job_id: str) -> JobRow:
        """The job; `answer` is the Evaluation once it has ended."""
        job = self.store.job("evaluation", job_id)
        if job is None:
            raise UnknownError(f"no evaluation {job_id!r}")
        return job

    # ----------------------------------------------------------------------------------------------------------------

    def _begin(self, asked: RunJob, by: str, once: Once | None) -> str:
        config = asked.config.model_copy(update={"sandbox": self.place.address})
        asked = asked.model_copy(update={"config": config})
        self._check(config)
        entry = find(config.problem, config.suite)
        run_id = new_run_id(entry.number, entry.name)
        while (self.root / run_id).exists() or self.index.find(run_id):
            run_id = new_run_id(entry.number, entry.name)

        def act(session: Session) -> str:
            session.add(new_job("run", run_id, asked.model_dump_json(), by))
            session.add(queued_row(run_id, config))
            return run_id

        answer, replayed = self.store.once(once, act)
        if not replayed:
            self._put_run(run_id)
        return answer

    def _check(self, config: RunConfig) -> None:
        """Raises what would be raised when the run begins, as far as it can be known now."""
        from service.run import check

        self.allow(config.model, config.suite)
        _no_keys(config.model)
        check(config)

    def allow_all(self, asked: Wanted) -> None:
        """Raises UsageError for a sweep that this server was not told to allow."""
        if asked.sandbox:
            raise UsageError("sandbox: candidates are evaluated where this server was told to (`serve --sandbox`)")
        self.allow("", asked.suite)
        for name in model_names(asked.models or ()):
            self.allow(name, "")
            _no_keys(name)

    def allow(self, model: str, suite: str) -> None:
        """Raises UsageError for what this server was not told to allow. To be asked before `suite` is looked at."""
        if not self.files and (suite or model.startswith(_FILES)):
            what = "problems of a suite" if suite else f"model {model.partition(':')[0]}:"
            raise UsageError(f"{what}: read from files of this machine, which this server was not told to allow")

    def _put_run(self, run_id: str, again: bool = False) -> None:
        self._leading.active.add(run_id)
        self.runs.put(lambda: self._leading.do(run_id, again))

    def _refresh(self) -> None:
        while not self.stopping.wait(REFRESH_S):
            try:
                self.index.refresh()
            except Exception as error:  # the disk or the database: the next look may do better
                log.warning("the index of runs: %s", redaction.from_error(str(error)))


def _no_keys(text: str) -> None:
    """Raises UsageError for a text with a provider's key in it: it would be in the record for good."""
    if redaction.from_json(text) != text:
        raise UsageError("there is a key in it, which must not come into a record")


def _take(root: Path) -> int:
    try:
        root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(root / ".server", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise HarnessError(f"cannot use {root}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(f"another server has {root}") from None
    return descriptor
