"""The index of runs: a row for each record under the root, made again when its file has changed, so that lists of
thousands are filtered and paged by SQL."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import ColumnElement, SQLColumnExpression, delete, func, insert, or_, select, update

from harness.errors import RingsmithError
from runs.attempts import headline
from runs.events import RunConfig
from runs.fold import Folding
from runs.loading import described
from service.jobs.store import Store
from service.jobs.tables import RunIndex
from service.jobs.tail import Tails

REFRESH_S = 1.0
_AT_ONCE = 50
"""Rows that are written in one transaction."""
_ENDED = ("finished", "interrupted", "unreadable")

SortKey = Literal["started", "speedup", "usd", "steps", "model", "problem"]
_SORTED: dict[SortKey, SQLColumnExpression[Any]] = {
    "started": RunIndex.started_at,
    "speedup": func.coalesce(RunIndex.speedup, -1.0),
    "usd": RunIndex.usd,
    "steps": RunIndex.steps,
    "model": RunIndex.model,
    "problem": RunIndex.problem,
}


@dataclass(frozen=True)
class Filter:
    """Which runs; None and empty: whatever it is."""

    problem: int | None = None
    model: str = ""
    state: str = ""
    verdict: str = ""
    sweep: str | None = None
    """Empty: runs of no sweep."""
    text: str = ""
    """In the run's id, its problem's name, or its model."""

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        if self.problem is not None:
            yield RunIndex.problem == self.problem
        for column, wanted in (
            (RunIndex.model, self.model),
            (RunIndex.state, self.state),
            (RunIndex.verdict, self.verdict),
        ):
            if wanted:
                yield column == wanted
        if self.sweep is not None:
            yield RunIndex.sweep == self.sweep
        if self.text:
            columns = (RunIndex.run_id, RunIndex.name, RunIndex.model)
            yield or_(*(column.icontains(self.text, autoescape=True) for column in columns))


class RunsIndex:
    """Thread-safe."""

    def __init__(self, root: Path, store: Store, tails: Tails) -> None:
        self._root, self._store, self._tails = root, store, tails
        self._refreshing = threading.Lock()

    def find(self, run_id: str) -> RunIndex | None:
        """Of several, the one that is in no sweep."""
        wanted = select(RunIndex).where(RunIndex.run_id == run_id).order_by(RunIndex.sweep).limit(1)
        with self._store.reads() as session:
            return session.scalars(wanted).first()

    def list(
        self, wanted: Filter, *, limit: int = 50, offset: int = 0, sort: SortKey = "started", ascending: bool = False
    ) -> tuple[Sequence[RunIndex], int]:
        """The rows of a page, and how many there are in all."""
        conditions, column = list(wanted.conditions()), _SORTED[sort]
        orders = [column, RunIndex.path] if ascending else [column.desc(), RunIndex.path.desc()]
        with self._store.reads() as session:
            total = session.scalar(select(func.count()).select_from(RunIndex).where(*conditions)) or 0
            page = select(RunIndex).where(*conditions).order_by(*orders).limit(limit).offset(offset)
            return session.scalars(page).all(), total

    def refresh(self) -> int:
        """Read what has changed on the disk since; how many records that were."""
        with self._refreshing:
            with self._store.reads() as session:
                columns = (RunIndex.path, RunIndex.size, RunIndex.changed_ns, RunIndex.state)
                known = {
                    path: (size, changed, state) for path, size, changed, state in session.execute(select(*columns))
                }
            changed: list[dict[str, Any]] = []
            count, there = 0, set()
            for path, stat in self._records():
                there.add(path)
                old = known.get(path)
                same = old is not None and old[:2] == (stat.st_size, stat.st_mtime_ns)
                if same and old is not None and old[2] in _ENDED:
                    continue
                if same and old is not None and old[2] == self._state(path):
                    continue
                changed.append(self._row(path, stat))
                count += 1
                if len(changed) == _AT_ONCE:
                    self._write(changed)
                    changed = []
            self._write(changed)
            # What never had a record is a job's, which waits or has failed.
            if gone := [path for path, (size, _, _) in known.items() if size >= 0 and path not in there]:
                with self._store.writes() as session:
                    session.execute(delete(RunIndex).where(RunIndex.path.in_(gone)))
            return count

    def refresh_one(self, folder: Path) -> None:
        """Of one record, now."""
        path = str(folder.relative_to(self._root))
        try:
            stat = os.stat(folder / "events.jsonl")
        except OSError:
            return
        with self._refreshing:
            self._write([self._row(path, stat)])

    def add(self, row: RunIndex) -> None:
        """Of a run that has no record yet."""
        with self._store.writes() as session:
            session.merge(row)

    def set_state(self, path: str, state: str, reason: str = "") -> None:
        """Of a run that has no record."""
        with self._store.writes() as session:
            session.execute(
                update(RunIndex).where(RunIndex.path == path, RunIndex.size < 0).values(state=state, reason=reason)
            )

    def _records(self) -> Iterator[tuple[str, os.stat_result]]:
        """Every record's path below the root, and what its file of events is like. Nothing less than a look at each
        tells of a run that is gone on with: its folder does not change. Thousands of looks a second are cheap only
        without a `Path` for each."""
        sweeps = self._root / "sweeps"
        folders = [("", self._root), *((f"sweeps/{name}/runs/", sweeps / name / "runs") for name in _names(sweeps))]
        for prefix, folder in folders:
            for name in _names(folder):
                try:
                    yield f"{prefix}{name}", os.stat(f"{folder}/{name}/events.jsonl")
                except OSError:
                    continue

    def _state(self, path: str) -> str:
        tail = self._tails.get(self._root / path)
        try:
            run = tail.run()
        except (RingsmithError, OSError):
            return "unreadable"
        return run.status if run else "interrupted"

    def _row(self, path: str, stat: os.stat_result) -> dict[str, Any]:
        folder = self._root / path
        sweep = path.split("/")[1] if path.startswith("sweeps/") else ""
        row: dict[str, Any] = {
            "path": path,
            "run_id": folder.name,
            "sweep": sweep,
            "size": stat.st_size,
            "changed_ns": stat.st_mtime_ns,
        }
        tail = self._tails.get(folder)
        try:
            live = tail.is_live()
            state = tail.folding()
        except (RingsmithError, OSError) as error:
            return row | {"state": "unreadable", "reason": str(error), "started_at": stat.st_mtime}
        if state is None:
            return row | {"state": "running" if live else "interrupted", "started_at": stat.st_mtime}
        return row | facts(state, live)

    def _write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Instead of what there was. Two statements however many rows: this goes on all the time."""
        if rows:
            with self._store.writes() as session:
                session.execute(delete(RunIndex).where(RunIndex.path.in_([row["path"] for row in rows])))
                session.execute(insert(RunIndex), [_NOTHING | row for row in rows])


_NOTHING: dict[str, Any] = {
    "problem": 0, "name": "", "case": "", "suite": "", "platform": "", "world_size": 0, "dtype": "", "backend": "",
    "model": "", "strategy": "", "reason": "", "verdict": "", "target_met": False, "helped": False, "steps": 0,
    "attempts": 0, "speedup": None, "tokens": 0, "usd": 0.0, "wall_s": 0.0, "device_s": 0.0, "finished_at": None,
}  # fmt: skip
"""Of a record that cannot be read, or has no event yet."""


def facts(state: Folding, live: bool) -> dict[str, Any]:
    """What a row says of a run."""
    run = state.run(live)
    verdicts = (attempt.verdict for attempt in reversed(run.attempts) if attempt.verdict is not None)
    verdict = run.official.verdict if run.official else next(verdicts, None)
    measured = run.official.measurement if run.official else run.best.measurement if run.best else None
    return _of_config(run.config) | {
        "state": run.status,
        "reason": run.reason or "",
        "verdict": verdict.value if verdict else "",
        "target_met": run.target_met,
        "helped": run.helped,
        "steps": run.spend.steps,
        "attempts": run.evaluated,
        "speedup": headline(measured).value if measured else None,
        "tokens": run.spend.tokens,
        "usd": run.spend.usd,
        "wall_s": run.spend.wall_s,
        "device_s": run.spend.device_s,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
    }


def queued_row(run_id: str, config: RunConfig) -> RunIndex:
    """Of a run that waits for its turn."""
    return RunIndex(path=run_id, run_id=run_id, state="queued", started_at=time.time(), **_of_config(config))


def _of_config(config: RunConfig) -> dict[str, Any]:
    """What is known of a run before it begins."""
    return {
        "problem": config.problem,
        "name": described(config.suite, config.problem)[0],
        "case": config.case,
        "suite": config.suite,
        "platform": config.platform,
        "world_size": config.world_size,
        "dtype": config.dtype,
        "backend": config.backend.value,
        "model": config.model,
        "strategy": config.strategy,
    }


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
