"""Why ranks wait for ever: who waits where, who never gets there, whether they wait for the same. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from harness.code_text import source_lines
from harness.diagnosis import candidate_line, name_ranks
from harness.outcomes import Frame, RankOutcome
from harness.progress import Phase
from harness.types import Finding

_COLLECTIVE = re.compile(r"(all_)?reduce|(all_)?gather|broadcast|scatter|all_to_all|barrier")
_WRAPPERS = ("wrapper", "call")
"""Functions of torch and of the kit that only hand on."""
_TRANSFERS = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "wait")


def explain(ranks: Sequence[RankOutcome], source: str, *, working: bool = False) -> tuple[Finding, ...]:
    """Of a call that not all ranks finished; `working`: all that have not are at work in their own Python code. The
    finding with the table first: it is what there is to go by."""
    silent = [rank for rank in ranks if rank.silent]
    if not silent:
        return ()
    lines = source_lines(source)
    places = {rank.rank: _place(rank) for rank in silent}
    at: dict[str, list[int]] = {}
    for rank, place in places.items():
        at.setdefault(_said(place, lines), []).append(rank)
    table = "; ".join(f"{name_ranks(there)} at {said}" for said, there in at.items())
    done = [rank.rank for rank in ranks if rank.ok]
    if working and not done:
        where = f"all ranks at {next(iter(at))}" if len(at) == 1 else table
        text = (
            f"{where}: at work there in Python and not waiting for one another: a loop that does not end (asking again "
            "and again whether a flag is there is one too), or work that takes longer than a call may"
        )
        return (Finding(cause="does not end", text=text, evidence=_calls(ranks), certain=False),)
    if done:
        one = "does not give" if len(done) == 1 else "not all of them give"
        text = (
            f"{name_ranks(done)} returned from this call while others still wait, and {one} what those wait for, a "
            f"barrier that is not entered, a flag that is not raised, a message: waiting are {table}"
        )
        return (Finding(cause="rank does not arrive", text=text, evidence=_calls(ranks)),)
    if len(at) > 1:
        text = "ranks wait at different places and do not meet: another order, or a branch that hangs on the rank"
        return (Finding(cause="different order", text=f"{text}: {table}", evidence=_calls(ranks)),)
    function = next(iter(places.values()))[1]
    where = f"all ranks wait at {next(iter(at))}"
    if function in _TRANSFERS or ".wait(" in where:
        text = f"{where}: sends and receives do not match, or are in an order in which nobody begins to receive"
    elif _COLLECTIVE.match(function):
        text = f"{where}: all have come there, but for different sizes, kinds, groups or for a different count of calls"
    else:
        text = (
            f"{where}: nobody gives the signal, or a flag value is waited for that is never reached (raised too "
            "rarely, not reset, or compared with another call's number)"
        )
    return (Finding(cause="nobody signals", text=text, evidence=_calls(ranks), certain=False),)


def _place(rank: RankOutcome) -> tuple[int | None, str]:
    """The candidate's line, and the function that it called there (of a library; `wait` for a handle's)."""
    own = next((i for i, frame in enumerate(rank.stack) if Path(frame.file).name == "candidate.py"), None)
    line = candidate_line(rank.stack)
    if line is None and rank.words is not None and rank.words.phase is Phase.draining:
        line = rank.words.line or None
    called = "" if not own else _called(rank.stack[:own])
    return line, called


def _called(frames: Sequence[Frame]) -> str:
    """What the candidate's line called: the outermost function below it that is not a wrapper."""
    return next((frame.function for frame in reversed(frames) if frame.function not in _WRAPPERS), "")


def _said(place: tuple[int | None, str], lines: list[str]) -> str:
    line, function = place
    if line is None:
        return "no line of the candidate's own"
    text = lines[line - 1].strip()[:100] if 0 < line <= len(lines) else ""
    inner = f", in {function}" if function and function not in text else ""
    return f"line {line}{inner}: `{text}`"


def _calls(ranks: Sequence[RankOutcome]) -> str:
    """How many calls each rank has begun, if they differ or say how long all went well."""
    counts = [(rank.rank, rank.words.calls) for rank in ranks if rank.words is not None]
    if len({count for _, count in counts}) == 1 and counts:
        return f"all ranks are in call {counts[0][1]}"
    return "calls begun: " + ", ".join(f"rank {rank} {count}" for rank, count in counts)
