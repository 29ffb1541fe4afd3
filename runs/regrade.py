"""Candidates of earlier runs, evaluated again: what was found is kept beside the record, which never changes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from harness.errors import HarnessError, UsageError
from harness.types import Evaluation, Frozen, Protocol, Timing
from harness.wording import figure, ratio_text
from runs.fold import Run
from runs.record import Record


class Regrade(Frozen):
    """`<run>/regrades/<time>.json`."""

    at: float
    """Unix time in seconds."""
    run_id: str
    protocol: Protocol
    before: Evaluation | None
    """The run's official evaluation; None if it has none, as when it was killed."""
    after: Evaluation
    changes: tuple[str, ...]
    """What is otherwise than before: settings, then verdict, then speed-ups outside of the earlier interval."""


def graded_candidate(run: Run) -> str | None:
    """Hash of the candidate that stands for the run."""
    if run.official is not None:
        return run.official.candidate
    return run.best.candidate if run.best is not None else None


def compare(before: Evaluation | None, after: Evaluation, protocols: tuple[Protocol, Protocol]) -> tuple[str, ...]:
    """`protocols`: of the run, and now."""
    if before is None:
        return (f"not evaluated officially -> {after.verdict}",)
    return (*_settings_changed(before, after, protocols), *_results_changed(before, after))


def _settings_changed(before: Evaluation, after: Evaluation, protocols: tuple[Protocol, Protocol]) -> Iterator[str]:
    if protocols[0] != protocols[1]:
        yield f"protocol: {protocols[0]} -> {protocols[1]}"
    for name in ("case", "world_size", "dtype", "check", "trials"):
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            yield f"{name}: {old} -> {new}"
    for name in ("platform", "devices", "driver", "cuda", "torch", "harness"):
        old, new = getattr(before.environment, name), getattr(after.environment, name)
        if old != new:
            yield f"{name}: {old} -> {new}"


def _results_changed(before: Evaluation, after: Evaluation) -> Iterator[str]:
    if before.verdict != after.verdict:
        yield f"verdict: {before.verdict} -> {after.verdict}"
    if before.measurement is None or after.measurement is None:
        return
    yield from _ratio_changed("eager", before.measurement.eager, after.measurement.eager)
    if before.measurement.device and after.measurement.device:
        yield from _ratio_changed("device", before.measurement.device, after.measurement.device)


def _ratio_changed(name: str, before: Timing, after: Timing) -> Iterator[str]:
    old, new = before.speedup, after.speedup
    if not old.low <= new.value <= old.high:
        yield f"{name} speed-up: {ratio_text(old)} -> {figure(new.value)}x"


def save(record: Record, regrade: Regrade) -> Path:
    """Raises HarnessError if the disk refuses."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(regrade.at))
    path = record.path / "regrades" / f"{stamp}-{secrets.token_hex(2)}.json"
    try:
        path.parent.mkdir(exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(regrade.model_dump_json(indent=1) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise HarnessError(f"cannot write {path}: {error.strerror}") from error
    return path


def regrades(record: Record) -> list[Regrade]:
    """Of one run, oldest first. Raises UsageError for a file that is none."""
    found = []
    for path in sorted((record.path / "regrades").glob("*.json")):
        try:
            found.append(Regrade.model_validate_json(path.read_text(encoding="utf-8")))
        except ValidationError:
            raise UsageError(f"{path} is not a regrade") from None
    return found
