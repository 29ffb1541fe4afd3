"""A sweep on disk: `<runs_dir>/sweeps/<name>/` with `plan.json` (what is to be run), `events.jsonl` (which cell is
which run, and how it ended) and ordinary records in `runs/<run_id>/`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import ValidationError

from harness.errors import HarnessError, UsageError
from runs.append import append_line, is_locked, open_for_append
from runs.record import Record
from runs.sweep import SWEEP_EVENT, Cell, CellState, Plan, SweepEvent, fold_sweep


class SweepRecord:
    """One sweep's folder. Any number of readers; one writer, from `open_to_write` to `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer: int | None = None

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def runs(self) -> Path:
        """The root of the run records."""
        return self.path / "runs"

    @property
    def drain_file(self) -> Path:
        """While it exists no new cell is begun."""
        return self.path / "drain"

    def exists(self) -> bool:
        return (self.path / "plan.json").is_file()

    def plan(self) -> Plan:
        """Raises UsageError if this is not a sweep, or not one that can be read."""
        try:
            return Plan.model_validate_json((self.path / "plan.json").read_text(encoding="utf-8"))
        except OSError:
            raise UsageError(f"{self.path} is not a sweep: it has no plan.json") from None
        except ValidationError as error:
            problem = error.errors()[0]
            place = ".".join(str(part) for part in problem["loc"])
            said = filter(None, (str(self.path / "plan.json"), place, problem["msg"]))
            raise UsageError(": ".join(said)) from None

    def open_to_write(self) -> None:
        """Raises UsageError if another process works on this sweep, HarnessError if the folder cannot be made."""
        try:
            self.runs.mkdir(parents=True, exist_ok=True)
            self._writer = open_for_append(self.path / "events.jsonl", f"sweep {self.name}")
        except OSError as error:
            raise HarnessError(f"cannot write {self.path}: {error.strerror}") from error

    def lock_plan(self, plan: Plan) -> None:
        """Write the plan, whole or not at all. Call while open."""
        partial = self.path / ".plan.json"
        try:
            with partial.open("w", encoding="utf-8") as file:
                file.write(json.dumps(plan.model_dump(mode="json"), indent=1) + "\n")
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self.path / "plan.json")
        except OSError as error:
            raise HarnessError(f"cannot write {self.path / 'plan.json'}: {error.strerror}") from error

    def append(self, event: SweepEvent) -> None:
        """Raises HarnessError if the disk refuses. Not thread-safe."""
        assert self._writer is not None, "not open"
        try:
            append_line(self._writer, event.model_dump_json().encode() + b"\n")
        except OSError as error:
            raise HarnessError(f"cannot write {self.path / 'events.jsonl'}: {error.strerror}") from error

    def events(self) -> list[SweepEvent]:
        """Oldest first, without a torn last line. Raises UsageError for any other line that is not an event."""
        path, found = self.path / "events.jsonl", []
        if not path.is_file():
            return []
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break
                try:
                    found.append(SWEEP_EVENT.validate_json(line))
                except ValidationError:
                    raise UsageError(f"{path}, line {number}: not an event of a sweep") from None
        return found

    def is_being_run(self) -> bool:
        return (self.path / "events.jsonl").is_file() and is_locked(self.path / "events.jsonl")

    def states(self) -> dict[Cell, CellState]:
        """Of every cell that was ever started."""
        return fold_sweep(self.events())

    def results(self) -> dict[Cell, Record]:
        """The record of every cell that has come to its end, readable or not, in the order of the cells. A cell that
        could not be run at all has none."""
        states = self.states()
        ended = {
            cell: Record(self.runs / states[cell].run_id) for cell in sorted(states, key=str) if states[cell].final
        }
        return {cell: record for cell, record in ended.items() if record.exists()}

    def begun(self, run_id: str) -> Record | None:
        """The record of a run that came as far as its first event; None if its process was killed before. Raises
        UsageError if that cannot be read."""
        record = Record(self.runs / run_id)
        try:
            return record if next(record.events(), None) is not None else None
        except FileNotFoundError:
            return None

    def close(self) -> None:
        if self._writer is not None:
            os.close(self._writer)
            self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def sweeps_in(folder: Path) -> list[SweepRecord]:
    """The folder if it is a sweep, else the sweeps in it and in its `sweeps/`."""
    if (itself := SweepRecord(folder)).exists():
        return [itself]
    inside = (SweepRecord(path.parent) for pattern in ("*", "sweeps/*") for path in folder.glob(f"{pattern}/plan.json"))
    return sorted((sweep for sweep in inside if sweep.exists()), key=lambda sweep: sweep.path)


def sweep_record(runs_dir: Path, name: str) -> SweepRecord:
    """The sweep of that name, there or not. Raises UsageError for a name that is none for a folder."""
    if not name or "/" in name or name.startswith("."):
        raise UsageError(f"{name!r} is no name for a sweep: letters, digits, - and _")
    return SweepRecord(runs_dir / "sweeps" / name)
