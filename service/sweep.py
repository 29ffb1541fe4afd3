"""A sweep while it goes on: cells in threads, each an ordinary run, until all have ended or something says stop."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from agent.budget import DIMENSIONS
from agent.cap import Cap, exhausted
from agent.prompt import folder_hash
from harness import machine
from harness.errors import RingsmithError, UsageError
from harness.evaluate import Evaluator
from problems.catalogue import find
from problems.spec import ProblemError
from runs.events import SWEEP, Budget, Event, RunConfig, RunFinished, RunStarted, is_final
from runs.fold import Folding
from runs.record import Record, new_run_id
from runs.sweep import Cell, CellEnded, CellStarted, Plan, SweepEnded, SweepStarted
from runs.sweep_record import SweepRecord
from service.run import resume_one, run_one
from service.tally import Tally

_FAILURES_IN_A_ROW = 5
"""Cells that fail for reasons of ours or a provider's, with none between that does not, end the sweep: whatever it is,
the next one meets it too."""
_STOP_S = 30.0
"""How long after Ctrl-C a run may still be in a call that cannot be broken off (a model's reply)."""


class Engine(Evaluator, Protocol):
    """Who evaluates for all runs at once: `harness.pool.Pool`."""

    def stop(self) -> None:
        """Answer nobody from now on: whoever waits gets KeyboardInterrupt."""
        ...


class Watch(Protocol):
    """Who shows what happens. Called by any thread, one at a time."""

    def started(self, cell: Cell, run_id: str, attempt: int, resumed: bool) -> None: ...

    def ended(self, cell: Cell, reason: str, state: Folding | None) -> None: ...

    def tick(self, tally: Tally) -> None:
        """Some time has passed."""
        ...


class Sweep:
    def __init__(
        self,
        record: SweepRecord,
        plan: Plan,
        engine: Engine,
        watch: Watch,
        *,
        engine_name: str = "local",
        concurrency: int = 16,
        retries: int = 2,
        caps: Budget | None = None,
        pause_s: float = 2.0,
    ) -> None:
        """`record` is open for writing and its plan is `plan`. A cell that fails for reasons of ours is gone on with
        `retries` times at most, after `pause_s` the first time and twice as long each further one."""
        self.record, self.plan, self.engine, self.watch = record, plan, engine, watch
        self._engine_name, self._concurrency = engine_name, concurrency
        self._retries, self._caps, self._pause_s = retries, caps or Budget(steps=None), pause_s
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._end: str | None = None
        """Why no more cells are begun."""
        self._failures = 0
        self._deaf = False
        self.tally = Tally(plan, record)
        # What passes is a sweep's wall time, so it is not metered by runs, which add up: it is asked between cells.
        limits = self._caps.model_dump(include={"tokens", "usd", "device_s"})
        self._cap = Cap(**limits, spent=self.tally.spend)
        states = record.states()
        todo = [cell for cell in plan.cells() if cell not in states or not states[cell].final]
        self._todo = deque(sorted(todo, key=lambda cell: cell not in states))
        self._run_ids = {cell: state.run_id for cell, state in states.items()}

    def drain(self, reason: str = "drained") -> None:
        """Begin no more cells; those under way come to their end."""
        with self._lock:
            self._end = self._end or reason

    def stop(self) -> None:
        """As `drain`, and end those under way as interrupted at their next event."""
        with self._lock:
            self._end = "interrupted"
        self._stopping.set()
        self.engine.stop()

    def run(self) -> str:
        """Until every cell has ended, a cap is reached, or it is told to stop; returns why, as in `SweepEnded`.

        In the main thread Ctrl-C stops (a second one at once) and SIGUSR1 drains; the file `drain` drains too."""
        self.record.drain_file.unlink(missing_ok=True)
        cells = len(self._todo)
        self._append(
            SweepStarted(
                at=time.time(),
                pid=os.getpid(),
                engine=self._engine_name,
                harness=machine.harness_version(),
                prompts_hash=folder_hash(),
                cells=cells,
            )
        )
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(min(self._concurrency, cells))]
        with _on_signal(self):
            try:
                for thread in threads:
                    thread.start()
                self._wait(threads)
            except KeyboardInterrupt:
                self.stop()
                self._wait(threads, _STOP_S)
        with self._lock:
            reason = self._end or "done"
            self._append(SweepEnded(at=time.time(), reason=reason))
            self._deaf = True  # a thread that is still in a model's reply writes nothing any more
            self.tally.close()
            return reason

    def _wait(self, threads: list[threading.Thread], limit_s: float | None = None) -> None:
        until = None if limit_s is None else time.monotonic() + limit_s
        while any(thread.is_alive() for thread in threads) and (until is None or time.monotonic() < until):
            time.sleep(0.1)
            with self._lock:
                self.watch.tick(self.tally)

    def _work(self) -> None:
        while (cell := self._next()) is not None:
            try:
                self._run_cell(cell)
            except Exception as error:  # the disk refuses the sweep's own events, or a bug of ours
                self.drain(f"error: {type(error).__name__}: {error}")

    def _next(self) -> Cell | None:
        with self._lock:
            if self.record.drain_file.exists():
                self.drain()
            if self._todo and self._end is None and (over := self._over()):
                self.drain(f"cap: {over}")
            return self._todo.popleft() if self._todo and self._end is None else None

    def _over(self) -> str | None:
        """The first cap that is used up, or None."""
        return exhausted(self._caps, self.tally.spend.model_copy(update={"wall_s": self.tally.wall_s}), DIMENSIONS)

    def _run_cell(self, cell: Cell) -> None:
        for attempt in range(1, self._retries + 2):
            reason = self._attempt(cell, attempt)
            if reason.startswith(SWEEP):
                self.drain(f"cap: {reason.removeprefix(SWEEP).strip()}")
            if is_final(reason) or self._end is not None or reason.startswith("error: usage:"):
                break
            self._stopping.wait(self._pause_s * 2 ** (attempt - 1))
        with self._lock:
            self._failures = self._failures + 1 if reason.startswith("error:") else 0
            if self._failures == _FAILURES_IN_A_ROW:
                self.drain(f"error: {_FAILURES_IN_A_ROW} cells in a row failed, the last of {reason}")

    def _attempt(self, cell: Cell, attempt: int) -> str:
        """One process's go at a cell; returns the reason of its end."""
        config = self.plan.config(cell)
        record = self._begun(cell)
        with self._lock:
            run_id = self._run_ids[cell] = record.run_id if record else self._new_run_id(config)
            self._append(CellStarted(at=time.time(), cell=cell, run_id=run_id, attempt=attempt))
            self.tally.running(cell)
            self.watch.started(cell, run_id, attempt, record is not None)
        folding: list[Folding] = []

        def on_event(event: Event) -> None:
            with self._lock:
                if isinstance(event, RunStarted):
                    folding[:] = [Folding(event)]
                else:
                    folding[0].add(event)
                self.tally.running(cell, folding[0])
            if self._stopping.is_set() and not isinstance(event, RunFinished):
                raise KeyboardInterrupt  # as Ctrl-C in a run of its own: recorded, and gone on with later

        try:
            if record is None:
                run = run_one(
                    config, root=self.record.runs, on_event=on_event, sandbox=self.engine, cap=self._cap, run_id=run_id
                )
            elif (finished := record.finished()) and is_final(finished.reason):
                run = record.run()  # the process was killed before it had written down here that the run had ended
                for event in record.events():
                    on_event(event)
            else:
                run = resume_one(record, on_event=on_event, sandbox=self.engine, cap=self._cap)
            reason = run.reason or "interrupted"
        except KeyboardInterrupt:
            reason = "interrupted"
        except ProblemError as error:
            reason = f"impossible: {error}"
        except UsageError as error:
            reason = f"error: usage: {error}"
        except RingsmithError as error:
            reason = f"error: {error}"
        except Exception as error:
            reason = f"error: internal: {type(error).__name__}: {error}"
        with self._lock:
            self._append(CellEnded(at=time.time(), cell=cell, run_id=run_id, reason=reason))
            self.tally.over(cell, reason, folding[0] if folding else None)
            self.watch.ended(cell, reason, folding[0] if folding else None)
        return reason

    def _new_run_id(self, config: RunConfig) -> str:
        entry = find(config.problem, config.suite)
        while True:  # many runs begin in the same second
            run_id = new_run_id(entry.number, entry.name)
            if run_id not in self._run_ids.values() and not (self.record.runs / run_id).exists():
                return run_id

    def _begun(self, cell: Cell) -> Record | None:
        """The record of the cell's last attempt; of one that never began, nothing is left."""
        run_id = self._run_ids.get(cell)
        record = self.record.begun(run_id) if run_id else None
        if run_id and record is None:
            shutil.rmtree(self.record.runs / run_id, ignore_errors=True)
        return record

    def _append(self, event: SweepStarted | SweepEnded | CellStarted | CellEnded) -> None:
        if not self._deaf:
            self.record.append(event)


@contextlib.contextmanager
def _on_signal(sweep: Sweep) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGUSR1, lambda *_: sweep.drain())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)
