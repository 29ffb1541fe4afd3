"""`--from RUN@ATTEMPT`: a candidate of a recorded run to begin with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.errors import UsageError
from runs.attempts import Attempt
from runs.events import RunConfig
from runs.record import Record


@dataclass(frozen=True)
class Origin:
    config: RunConfig
    source: str


def origin(given: str, find: Callable[[str], Record]) -> Origin:
    """`given` is RUN, RUN@NUMBER, RUN@HASH (or its beginning) or RUN@best; without anything the best attempt, else the
    last. Raises UsageError."""
    name, _, which = given.rpartition("@") if "@" in given else (given, "", "")
    record = find(name)
    run = record.run()
    if not run.attempts:
        raise UsageError(f"run {record.run_id} has no attempt")
    if not which:
        chosen = run.best or run.attempts[-1]
    elif which == "best":
        if run.best is None:
            raise UsageError(f"run {record.run_id} has no attempt that passed")
        chosen = run.best
    else:
        chosen = _named(which, run.attempts, record.run_id)
    return Origin(run.config, record.candidate(chosen.candidate).source)


def _named(which: str, attempts: tuple[Attempt, ...], run_id: str) -> Attempt:
    found = [a for a in attempts if which == str(a.number)] or [a for a in attempts if a.candidate.startswith(which)]
    texts = sorted({attempt.candidate for attempt in found})
    if not texts:
        raise UsageError(f"run {run_id} has no attempt {which}; `ringsmith runs show {run_id}` lists them")
    if len(texts) > 1:  # lanes count from 1 each
        raise UsageError(f"run {run_id} has several attempts {which}: say which by its hash ({', '.join(texts)})")
    return found[-1]
