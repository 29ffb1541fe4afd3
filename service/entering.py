"""A person enters a run that goes on, by whatever door: what is asked is left in the run's folder (`runs.control`)."""

from __future__ import annotations

from pydantic import ValidationError

from harness.errors import UsageError
from runs import control
from runs.control import Action, Request
from runs.record import Record
from service.errors import ConflictError


def enter(record: Record, action: Action, text: str = "", *, led: bool = False) -> tuple[str, str]:
    """The request's id, and when it will be taken. `led`: some process is about to lead the run, though it may not
    write it yet. Raises ConflictError if nobody would take it, UsageError for what is no request."""
    try:
        request = Request(action=action, text=text)
    except ValidationError as error:
        raise UsageError(control.why(error)) from None
    when = _when(record, action, led)
    return control.send(record.path, request), when


def _when(record: Record, action: Action, led: bool) -> str:
    if led or record.is_being_written():
        return "before the next tool call" if action == "cancel" else "before the next step"
    if (ended := record.finished()) and ended.final:
        raise ConflictError(f"run {record.run_id} has ended ({ended.reason}): nobody would take the {action}")
    if action in ("pause", "resume", "cancel"):
        raise ConflictError(
            f"no process leads run {record.run_id}: there is nothing to {action}; "
            f"`ringsmith run --resume {record.run_id}` goes on with it"
        )
    return "once the run is resumed"
