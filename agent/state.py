"""A run so far as one text: what takes the place of a conversation that has become too long.

Made from the record and not by a model: nothing in it can be invented, and it costs nothing.
"""

from __future__ import annotations

from agent.conversation import Conversation
from harness.types import Measurement
from runs.attempts import Attempt
from runs.events import ToolReturned
from runs.fold import Folding
from runs.record import Record

_ATTEMPTS = 40
_SUMMARY = 160
_TEXT = 4000
_SOURCE = 60_000

HEAD = (
    "The conversation up to here has been left out because it was too long. This is what came of it; everything below "
    "was measured. Go on from here: do not repeat what failed for the same reason."
)

HINTS = "What a person who follows this run has said so far:"


def written(state: Folding, talk: Conversation, record: Record) -> str:
    """What was tried, what was measured, what failed and why; best and current candidate in full."""
    parts = [_attempts(state.attempts, state.best)]
    if state.best is not None:
        parts.append(_source(f"The best candidate, attempt {state.best.number}", state.best.candidate, record))
    if talk.current is not None and (state.best is None or talk.current != state.best.candidate):
        parts.append(_source("The current candidate, which tools act on", talk.current, record))
    elif talk.current is not None:
        parts.append("It is the current candidate as well: tools act on it.")
    if talk.hints:
        parts.append("\n".join([HINTS, *(f"- {hint}" for hint in talk.hints)]))
    parts += [_told("The last failure", talk.last_failure), _told("The last profile", talk.last_profile)]
    return "\n\n".join(part for part in parts if part)


def _attempts(attempts: list[Attempt], best: Attempt | None) -> str:
    lines = [_attempt(attempt, best) for attempt in attempts if attempt.verdict is not None]
    if not lines:
        return "No candidate has been run yet."
    shown = lines[-_ATTEMPTS:]
    left_out = len(lines) - len(shown)
    head = f"Evaluated so far (* is the best{f'; the first {left_out} left out' if left_out else ''}):"
    return "\n".join([head, *shown])


def _attempt(attempt: Attempt, best: Attempt | None) -> str:
    mark = "*" if attempt == best else " "
    figures = _figures(attempt.measurement) if attempt.measurement else attempt.summary[:_SUMMARY]
    return f"{mark} attempt {attempt.number} ({attempt.candidate}): {attempt.verdict}; {figures}"


def _figures(measurement: Measurement) -> str:
    figures = [("device", measurement.device), ("eager", measurement.eager)]
    return ", ".join(
        f"{name} {timing.speedup.value:.2f}x [{timing.speedup.low:.2f}, {timing.speedup.high:.2f}], "
        f"{timing.candidate.median_us:.1f} us"
        for name, timing in figures
        if timing is not None
    )


def _source(title: str, candidate: str, record: Record) -> str:
    source = record.candidate(candidate).source
    cut = "" if len(source) <= _SOURCE else "\n[cut: `read` shows all]"
    return f"{title} ({candidate}):\n```python\n{source[:_SOURCE]}{cut}\n```"


def _told(title: str, event: ToolReturned | None) -> str:
    if event is None:
        return ""
    text = event.text if len(event.text) <= _TEXT else event.text[:_TEXT] + " [cut]"
    return f"{title} ({event.call.name}, step {event.step}):\n{text}"
