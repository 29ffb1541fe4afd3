"""What a person asks of a run that goes on: files in its folder, put there whole and taken in order by its one writer.

Needs no server and no open connection: a request outlives both processes until the run has recorded it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import ValidationError, model_validator

from harness.errors import HarnessError
from harness.types import Frozen

Action = Literal["pause", "resume", "cancel", "hint", "candidate"]

MAX_HINT = 10_000
"""Characters: it is put to the model whole, and stays in its context."""
_MAX_BYTES = 4 << 20
_FOLDER, _SUFFIX = "control", ".json"


class Request(Frozen):
    action: Action
    text: str = ""
    """The hint, or the candidate's source."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.action in ("hint", "candidate")) != bool(self.text.strip()):
            raise ValueError(f"a {self.action} {'without' if self.action in ('hint', 'candidate') else 'with'} a text")
        if self.action == "hint" and len(self.text) > MAX_HINT:
            raise ValueError(f"a hint of {len(self.text)} characters; at most {MAX_HINT}")
        self.text.encode()  # a lone surrogate is not text; UnicodeEncodeError is a ValueError
        return self


@dataclass(frozen=True)
class Pending:
    id: str
    """Names the request for good: events repeat it."""
    request: Request | None
    """None if it cannot be read as one."""
    fault: str = ""
    """Why it cannot be read; one line."""

    @property
    def action(self) -> Action | None:
        return self.request.action if self.request else None


def send(run: Path, request: Request) -> str:
    """Leave a request in a run's folder; it is on the disk when this returns. Returns its id. Raises HarnessError."""
    folder = run / _FOLDER
    partial = folder / f".{secrets.token_hex(8)}"
    try:
        folder.mkdir(exist_ok=True)
        with partial.open("wb") as file:
            file.write(request.model_dump_json().encode())
            file.flush()
            os.fsync(file.fileno())
        name = _next_id(folder)
        partial.replace(folder / f"{name}{_SUFFIX}")
    except OSError as error:
        raise HarnessError(f"cannot write {partial}: {error.strerror}") from error
    return name


def _next_id(folder: Path) -> str:
    """Later than what waits: the wall clock may be set back between two requests."""
    waiting = [int(name[:20]) for name in os.listdir(folder) if name[:20].isdecimal()]
    return f"{max([time.time_ns(), *(number + 1 for number in waiting)]):020d}-{secrets.token_hex(3)}"


def pending(run: Path) -> list[Pending]:
    """What has been asked for and not been taken away yet, oldest first."""
    folder = run / _FOLDER
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    names = [name for name in names if name.endswith(_SUFFIX) and not name.startswith(".")]
    return [_read(folder / name) for name in names]


def remove(run: Path, request: str) -> None:
    """Take a request away once it is recorded. What cannot be removed is known by its id when it is seen again."""
    with contextlib.suppress(OSError):
        (run / _FOLDER / f"{request}{_SUFFIX}").unlink()


def _read(path: Path) -> Pending:
    name = path.name.removesuffix(_SUFFIX)
    try:
        if not path.is_file():
            return Pending(name, None, "not a file")
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            return Pending(name, None, f"more than {_MAX_BYTES} bytes")
        return Pending(name, Request.model_validate_json(content))
    except OSError as error:
        return Pending(name, None, error.strerror or "cannot be read")
    except ValidationError as error:
        return Pending(name, None, why(error))


def why(error: ValidationError) -> str:
    """The first thing that is wrong with a request, in one line."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place + ': ' if place else ''}{first['msg'].removeprefix('Value error, ')}"
