"""A run so far as one text: what takes the place of a conversation that has become too long.

Made from the record and not by a model: nothing in it can be invented, and it costs nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from agent.conversation import Conversation
from harness.types import Measurement
from harness.wording import ratio_text, time_text
from runs.attempts import Attempt
from runs.events import ToolReturned
from runs.fold import Folding
from runs.lanes import Lane
from runs.record import Record

_ATTEMPTS = 40
_SUMMARY = 160
_TEXT = 4000
_SOURCE = 60_000
_TRIED = 12
_CHANGED, _LINE = 12, 140

HEAD = (
    "The conversation up to here has been left out because it was too long. This is what came of it; everything below "
    "was measured. Go on from here: do not repeat what failed for the same reason."
)

HINTS = "What a person who follows this run has said so far:"


def written(state: Folding, talk: Conversation, record: Record) -> str:
    """What was tried, what was measured, what failed and why; best and current candidate in full."""
    best = state.lane.best
    parts = [attempts_text(state.lane.attempts, best)]
    if best is not None:
        parts.append(source_text(f"The best candidate, attempt {best.number}", best.candidate, record))
    if talk.current is not None and (best is None or talk.current != best.candidate):
        parts.append(source_text("The current candidate, which tools act on", talk.current, record))
    elif talk.current is not None:
        parts.append("It is the current candidate as well: tools act on it.")
    if talk.hints:
        parts.append("\n".join([HINTS, *(f"- {hint}" for hint in talk.hints)]))
    parts += [told("The last failure", talk.last_failure), told("The last profile", talk.last_profile)]
    return "\n\n".join(part for part in parts if part)


def branched(candidate: str, state: Folding, talk: Conversation, record: Record) -> str:
    """A candidate to go on from: its source, what was measured of it, and what was tried from it."""
    parts = [
        source_text("Attempt 1, the current candidate, which tools act on", candidate, record),
        figures_text(candidate, state.attempts),
        told("Its last profile", talk.profiles.get(candidate)),
        tried_text(candidate, state.lanes, record),
    ]
    return "\n\n".join(part for part in parts if part)


def figures_text(candidate: str, attempts: Sequence[Attempt]) -> str:
    """What was measured of it, against the roofline where that is known."""
    measured = [a.measurement for a in attempts if a.candidate == candidate and a.measurement]
    if not measured:
        return ""
    latest = measured[-1]
    lines = [f"Measured: {figures(latest)}"]
    for name, floor_us, bound_by, reached in (
        ("Floor", latest.sol_us, latest.bound_by, latest.sol_fraction),
        (
            "At rates measured on this machine",
            latest.achievable_us,
            latest.achievable_bound_by,
            latest.achievable_fraction,
        ),
    ):
        if floor_us is not None:
            by = f", bound by {bound_by}" if bound_by else ""
            share = f"; {reached:.0%} of it reached" if reached is not None else ""
            lines.append(f"{name}: {floor_us:.1f} us{by}{share}")
    return "\n".join(lines)


def tried_text(candidate: str, lanes: Sequence[Lane], record: Record) -> str:
    """What was made of a candidate in these lanes, and what came of it: in the model's words if it had some, else as
    the lines that changed."""
    lines = []
    for made in _made_from(candidate, lanes)[-_TRIED:]:
        evaluated = [a for a in made if a.verdict is not None]
        if evaluated:
            last, said = evaluated[-1], " ".join(made[0].said.split())
            result = figures(last.measurement) if last.measurement else last.summary[:_SUMMARY]
            what = f' "{said}"' if said else f" it changed\n{_changes(candidate, last.candidate, record)}"
            lines.append(f"- {last.verdict}; {result}:{what}")
    return "\n".join(["Tried from it so far, and what came of it:", *lines]) if lines else ""


def _made_from(candidate: str, lanes: Sequence[Lane]) -> list[list[Attempt]]:
    """The attempts of each text that followed it in a lane."""
    made: dict[tuple[int, str], list[Attempt]] = {}
    for lane in lanes:
        hashes = [attempt.candidate for attempt in lane.attempts]
        if candidate in hashes:
            for attempt in lane.attempts[hashes.index(candidate) :]:
                if attempt.candidate != candidate:
                    made.setdefault((lane.number, attempt.candidate), []).append(attempt)
    return list(made.values())


def _changes(before: str, after: str, record: Record) -> str:
    old, new = (record.candidate(candidate).source.splitlines() for candidate in (before, after))
    lines = [line for line in difflib.unified_diff(old, new, n=0, lineterm="") if line[:3] not in ("---", "+++")]
    shown = [f"    {line[:_LINE]}" for line in lines if not line.startswith("@@")]
    more = [f"    ... {len(shown) - _CHANGED} more lines"] if len(shown) > _CHANGED else []
    return "\n".join([*shown[:_CHANGED], *more])


def attempts_text(attempts: list[Attempt], best: Attempt | None) -> str:
    lines = [_attempt(attempt, best) for attempt in attempts if attempt.verdict is not None]
    if not lines:
        return "No candidate has been run yet."
    shown = lines[-_ATTEMPTS:]
    left_out = len(lines) - len(shown)
    head = f"Evaluated so far (* is the best{f'; the first {left_out} left out' if left_out else ''}):"
    return "\n".join([head, *shown])


def _attempt(attempt: Attempt, best: Attempt | None) -> str:
    mark = "*" if attempt == best else " "
    what = figures(attempt.measurement) if attempt.measurement else attempt.summary[:_SUMMARY]
    return f"{mark} attempt {attempt.number} ({attempt.candidate}): {attempt.verdict}; {what}"


def figures(measurement: Measurement) -> str:
    """Speed-ups with their intervals, and times."""
    timings = [("device", measurement.device), ("eager", measurement.eager)]
    return ", ".join(
        f"{name} {ratio_text(timing.speedup)}, {time_text(timing.candidate.median_us, measurement.protocol)}"
        for name, timing in timings
        if timing is not None
    )


def source_text(title: str, candidate: str, record: Record) -> str:
    source = record.candidate(candidate).source
    cut = "" if len(source) <= _SOURCE else "\n[cut: `read` shows all]"
    return f"{title} ({candidate}):\n```python\n{source[:_SOURCE]}{cut}\n```"


def told(title: str, event: ToolReturned | None) -> str:
    if event is None:
        return ""
    text = event.text if len(event.text) <= _TEXT else event.text[:_TEXT] + " [cut]"
    return f"{title} ({event.call.name}, step {event.step}):\n{text}"
