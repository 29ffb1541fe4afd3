"""`ringsmith runs hint|candidate|pause|resume|cancel`: a person enters a run that another process leads."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from harness.errors import UsageError
from runs.control import Action
from runs.record import DEFAULT_ROOT
from service.commands.runs import find_record
from service.entering import enter
from service.options import Json, RunsDir

RunName = Annotated[str, typer.Argument(metavar="RUN", help="Run id, path of a record, or `latest`.")]


def hint(
    run: RunName,
    text: Annotated[str, typer.Argument(help="What the model is told, as from a person.")],
    runs_dir: RunsDir = DEFAULT_ROOT,
    json: Json = False,
) -> None:
    """Say something to the model, before its next step. A run that was interrupted hears it when it is resumed."""
    _leave(run, runs_dir, "hint", json, text)


def candidate(
    run: RunName,
    file: Annotated[Path, typer.Argument(help="The whole candidate, a Python module.")],
    runs_dir: RunsDir = DEFAULT_ROOT,
    json: Json = False,
) -> None:
    """Replace the current candidate, before the next step. The model is told what has changed. A run that was
    interrupted takes it when it is resumed."""
    try:
        source = file.read_bytes().decode()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    _leave(run, runs_dir, "candidate", json, source)


def pause(run: RunName, runs_dir: RunsDir = DEFAULT_ROOT, json: Json = False) -> None:
    """Hold a run before its next step, until `runs resume` or `runs cancel`. Its wall time stands still meanwhile."""
    _leave(run, runs_dir, "pause", json)


def resume(run: RunName, runs_dir: RunsDir = DEFAULT_ROOT, json: Json = False) -> None:
    """Let a paused run go on. (`ringsmith run --resume` goes on with one whose process has ended.)"""
    _leave(run, runs_dir, "resume", json)


def cancel(run: RunName, runs_dir: RunsDir = DEFAULT_ROOT, json: Json = False) -> None:
    """End a run after the tool call that is being made, with the official evaluation of its best candidate. Twice:
    without it, as Ctrl-C."""
    _leave(run, runs_dir, "cancel", json)


def _leave(run: str, runs_dir: Path, action: Action, json: bool, text: str = "") -> None:
    """Raises UsageError if nobody would take it."""
    record = find_record(run, runs_dir)
    name, when = enter(record, action, text)
    if json:
        said = {"run_id": record.run_id, "path": str(record.path), "request": name, "action": action}
        typer.echo(json_module.dumps(said))
    else:
        typer.echo(f"run {record.run_id}: {action} is taken {when}")
