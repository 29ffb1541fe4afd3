"""Sweeps as jobs: a sweep keeps its own record, so that the job only says that somebody wants it to go on, and how."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy.orm import Session

from agent.models import redaction
from harness.errors import RingsmithError
from problems.spec import ProblemError
from runs.fold import Folding
from runs.sweep import Cell, Plan
from runs.sweep_record import SweepRecord, sweep_record, sweeps_in
from service.errors import ConflictError, UnknownError
from service.jobs.crew import Crew
from service.jobs.pools import Pools, Share
from service.jobs.store import Once, Store
from service.jobs.tables import JobRow
from service.options import Place
from service.plan import Wanted, check_models, make_plan, widen
from service.sweep import Sweep
from service.tally import Tally

log = logging.getLogger("ringsmith.jobs")


class _Nobody:
    """Watches a sweep of which every run can be followed by itself."""

    def started(self, cell: Cell, run_id: str, attempt: int, resumed: bool) -> None: ...

    def ended(self, cell: Cell, reason: str, state: Folding | None) -> None: ...

    def tick(self, tally: Tally) -> None: ...


class Sweeps:
    """Thread-safe."""

    def __init__(self, root: Path, store: Store, pools: Pools, stopping: threading.Event, place: Place) -> None:
        self._root, self._store, self._pools, self._stopping, self._place = root, store, pools, stopping, place
        self.crew = Crew("sweep", 4)
        self._going: dict[str, Sweep] = {}
        self._lock = threading.Lock()

    def start(self, asked: Wanted, name: str, *, by: str = "", once: Once | None = None) -> str:
        """Begin a sweep, go on with one, or widen it and go on: as the command does. Returns its name. Raises
        UsageError or ProblemError for what cannot be, ConflictError while it is being run."""
        asked = asked.model_copy(update={"sandbox": self._place.address})
        record = sweep_record(self._root, name)
        keys = frozenset(asked.model_fields_set)

        def plan_of() -> Plan:
            return widen(record.plan(), asked, keys) if record.exists() else make_plan(asked, name, self._place.access)

        check_models(plan_of(), asked.sweep_usd)

        def act(session: Session) -> str:
            self._not_going(record)
            with record:
                record.open_to_write()
                record.lock_plan(plan_of())
            session.merge(
                JobRow(
                    kind="sweep",
                    id=name,
                    state="queued",
                    asked=asked.model_dump_json(exclude_unset=True),
                    by=by,
                    at=time.time(),
                    error="",
                )
            )
            return name

        answer, replayed = self._store.once(once, act)
        if not replayed:
            self.go_on(name)
        return answer

    def resume(self, name: str, *, by: str = "", once: Once | None = None) -> str:
        """Go on with a sweep that has ended early, with what it was asked for last."""
        self.record(name)
        job = self._store.job("sweep", name)
        return self.start(Wanted.model_validate_json(job.asked if job else "{}"), name, by=by, once=once)

    def drain(self, name: str, *, once: Once | None = None) -> str:
        """Begin no more runs; those under way come to their end."""

        def act(_: Session) -> str:
            self._sweep(name).drain()
            return "it begins no more runs"

        return self._store.once(once, act)[0]

    def cancel(self, name: str, *, once: Once | None = None) -> str:
        """End its runs as interrupted; they can be gone on with."""

        def act(_: Session) -> str:
            self._sweep(name).stop()
            return "its runs end as interrupted"

        return self._store.once(once, act)[0]

    def go_on(self, name: str) -> None:
        self.crew.put(lambda: self._do(name))

    def stop(self) -> None:
        """All of them, at their runs' next events."""
        with self._lock:
            going = list(self._going.values())
        for sweep in going:
            sweep.stop()

    def list(self) -> Sequence[SweepRecord]:
        return sweeps_in(self._root)

    def record(self, name: str) -> SweepRecord:
        """Raises UnknownError if there is no such sweep."""
        record = SweepRecord(self._root / "sweeps" / name)
        if not name or Path(name).name != name or name.startswith(".") or not record.exists():
            raise UnknownError(f"no sweep {name!r}")
        return record

    def _sweep(self, name: str) -> Sweep:
        self.record(name)
        with self._lock:
            if (sweep := self._going.get(name)) is None:
                raise ConflictError(f"sweep {name} is not being run here")
            return sweep

    def _not_going(self, record: SweepRecord) -> None:
        job = self._store.job("sweep", record.name)
        if record.is_being_run() or (job is not None and job.state in ("queued", "running")):
            raise ConflictError(f"sweep {record.name} is being run")

    def _do(self, name: str) -> None:
        """Never raises."""
        try:
            job = self._store.job("sweep", name)
            if job is None or job.state not in ("queued", "running"):
                return
            self._store.set_job("sweep", name, "running")
            try:
                reason = self._run(name, Wanted.model_validate_json(job.asked))
            except KeyboardInterrupt:
                reason = "interrupted"
            except (RingsmithError, ProblemError) as error:
                reason = f"error: {error}"
            if not (reason == "interrupted" and self._stopping.is_set()):
                failed = reason.startswith("error:")
                self._store.set_job("sweep", name, "failed" if failed else "ended", error=redaction.from_error(reason))
        except Exception as error:
            log.error("sweep %s: %s", name, redaction.from_error(f"{type(error).__name__}: {error}"))

    def _run(self, name: str, asked: Wanted) -> str:
        record = sweep_record(self._root, name)
        with record:
            record.open_to_write()
            plan = record.plan()
            where = (plan.common["platform"], plan.common["world_size"], plan.common["isolation"])
            with self._pools.lent(*where) as pool:
                sweep = Sweep(
                    record,
                    plan,
                    Share(pool),
                    _Nobody(),
                    concurrency=asked.concurrency,
                    retries=asked.retries,
                    caps=asked.caps(),
                )
                with self._lock:
                    self._going[name] = sweep
                try:
                    if self._stopping.is_set():
                        return "interrupted"
                    return sweep.run()
                finally:
                    with self._lock:
                        del self._going[name]
