"""A run on disk: `<root>/<run_id>/events.jsonl` is the truth, `candidates/<hash>.py` the sources that it names."""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import ValidationError

from harness.errors import HarnessError, UsageError
from harness.types import Candidate
from runs.append import append_line, is_locked, last_whole_line, open_for_append
from runs.events import EVENT, Event, RunFinished, RunStarted
from runs.fold import Run, fold, parted

DEFAULT_ROOT = Path(__file__).resolve().parent / "data"

_EVENTS = "events.jsonl"


def new_run_id(problem: int, name: str) -> str:
    """A name that sorts by time (UTC) and can be read: `20261121-101500-p01-allreduce-3f2a`."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"{stamp}-p{problem:02d}-{slug}-{secrets.token_hex(2)}"


class Record:
    """One run's folder. Any number of readers; one writer at a time, from its first `append` until `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer: int | None = None

    @classmethod
    def create(cls, root: Path, run_id: str) -> Self:
        """Raises UsageError if the run exists, HarnessError if the folder cannot be made."""
        path = root / run_id
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise UsageError(f"run {run_id} already exists in {root}") from None
        except OSError as error:
            raise HarnessError(f"cannot create {path}: {error.strerror}") from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Raises UsageError if `path` is not a run's folder."""
        record = cls(path)
        if not record.exists():
            raise UsageError(f"{path} is not a run: it has no {_EVENTS}")
        return record

    @classmethod
    def list(cls, root: Path = DEFAULT_ROOT) -> Sequence[Self]:
        """The runs under `root`, newest first by their names; opens no file."""
        return [cls(events.parent) for events in sorted(root.glob(f"*/{_EVENTS}"), reverse=True) if events.is_file()]

    @property
    def run_id(self) -> str:
        return self.path.name

    def exists(self) -> bool:
        """Whether something was written; what, only reading shows."""
        return (self.path / _EVENTS).is_file()

    def append(self, event: Event) -> None:
        """Write one line; it is on the disk when this returns. If it raises, all of the line was written or nothing.

        Raises UsageError if another process is writing this run, HarnessError if the disk refuses.
        """
        # Not through pydantic's own JSON: `EVENT` would write NaN as null, and a lone surrogate, which a model's or a
        # compiler's output may hold, would raise.
        line = json.dumps(event.model_dump(mode="json"), ensure_ascii=False).encode(errors="replace") + b"\n"
        try:
            if self._writer is None:
                self._writer = open_for_append(self.path / _EVENTS, f"run {self.run_id}")
            append_line(self._writer, line)
        except OSError as error:
            raise HarnessError(f"cannot write {self.path / _EVENTS}: {error.strerror}") from error

    def save_candidate(self, candidate: Candidate) -> None:
        """Keep the source under its hash. Its backend is the run's (`RunConfig.backend`)."""
        folder = self.path / "candidates"
        final = folder / f"{candidate.hash}.py"
        if final.exists():
            return
        try:
            folder.mkdir(exist_ok=True)
            partial = folder / f".{candidate.hash}.{os.getpid()}"
            with partial.open("wb") as file:
                file.write(candidate.source.encode())
                file.flush()
                os.fsync(file.fileno())
            partial.replace(final)
        except OSError as error:
            raise HarnessError(f"cannot write {final}: {error.strerror}") from error

    def candidate(self, candidate_hash: str) -> Candidate:
        """The candidate that was saved under `candidate_hash`. Raises UsageError if there is none."""
        path = self.path / "candidates" / f"{candidate_hash}.py"
        try:
            source = path.read_bytes().decode()
        except FileNotFoundError:
            raise UsageError(f"run {self.run_id} has no candidate {candidate_hash}") from None
        except UnicodeDecodeError:
            raise UsageError(f"{path} is not UTF-8 text") from None
        return Candidate(source=source, backend=self.started().config.backend)

    def events(self) -> Iterator[Event]:
        """Oldest first. A last line without its newline is what a killed writer left, and is left out.

        Raises UsageError, naming file and line, for any other line that is not an event.
        """
        with (self.path / _EVENTS).open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    yield self._parse(line, f"line {number}")

    def started(self) -> RunStarted:
        """The first event; reads one line. Raises UsageError if the run never got as far."""
        return parted(self.events(), str(self.path / _EVENTS))[0]

    def finished(self) -> RunFinished | None:
        """The last event if it ends the run; reads the end of the file only."""
        with (self.path / _EVENTS).open("rb") as file:
            line = last_whole_line(file.fileno())
        last = self._parse(line, "last line") if line else None
        return last if isinstance(last, RunFinished) else None

    def run(self) -> Run:
        """The fold of the events so far. Raises UsageError, naming the file, if it is no record of a run."""
        return fold(self.events(), live=self.is_being_written(), record=str(self.path / _EVENTS))

    def is_being_written(self) -> bool:
        """Whether some process (this one included) holds the run open for writing."""
        return is_locked(self.path / _EVENTS)

    def close(self) -> None:
        """Let go of the writer's lock. A later `append` takes it again."""
        if self._writer is not None:
            os.close(self._writer)
            self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _parse(self, line: bytes, where: str) -> Event:
        try:
            return EVENT.validate_json(line)
        except ValidationError as error:
            problem = error.errors()[0]
            place = ".".join(str(part) for part in problem["loc"])
            raise UsageError(
                f"{self.path / _EVENTS}, {where}: not an event ({place or 'line'}: {problem['msg']})"
            ) from None
