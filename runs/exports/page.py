"""A run as one HTML file to send to somebody: no network, no server, everything that a model or a candidate wrote as
text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.wording import ratio_text
from runs.diff import Change, changes, lines_of
from runs.exports.page_plot import over_steps
from runs.html.page import page
from runs.loading import UNKNOWN, described
from runs.record import Record
from runs.revisions import alike, counted
from runs.view import View, view
from runs.wording import charged, duration, when

_FOLDER = Path(__file__).parent
_TAIL = 60
"""Lines of a log or a stack that are kept."""


def run_page(record: Record) -> str:
    """Raises UsageError for a broken record, or without matplotlib."""
    shown = view(record.events())
    name, _ = described(shown.state.config.suite, shown.state.config.problem)
    if name == UNKNOWN and (evaluation := next((e for one in shown.revisions for e in one.evaluations), None)):
        name = evaluation.name
    sources = _sources(record, shown)
    return page(
        _FOLDER / "page.html.j2",
        styles=[_FOLDER / "page.css"],
        scripts=[_FOLDER / "page.js"],
        view=shown,
        name=name,
        status=shown.state.run(record.is_being_written()).status,
        plot=over_steps(shown),
        sources=sources,
        stored=_stored(shown, sources),
        profiled=next((one for one in reversed(shown.revisions) if one.profile), None),
        alike=alike,
        counted=counted,
        tail=_tail,
        speedup=ratio_text,
        duration=duration,
        when=when,
        charged=charged,
    )


def _sources(record: Record, shown: View) -> dict[str, str]:
    """By hash; without those that the record does not have."""
    found: dict[str, str] = {}
    for revision in shown.revisions:
        if revision.candidate not in found:
            try:
                found[revision.candidate] = record.candidate(revision.candidate).source
            except (UsageError, UnicodeDecodeError):
                continue
    return found


def _stored(shown: View, sources: dict[str, str]) -> dict[str, Any]:
    """For the page's script: every line that occurs in a candidate once, candidates as places in that list, and what
    each changes in the one before it and in the best."""
    places: dict[str, int] = {}
    candidates = {
        of: [places.setdefault(line, len(places)) for line in lines_of(source)] for of, source in sources.items()
    }
    attempts = {}
    for revision in shown.revisions:
        before, leader = shown.before(revision), shown.best
        attempts[revision.key] = {
            "candidate": revision.candidate,
            "before": _change(sources, before.candidate if before else None, revision.candidate),
            "best": _change(sources, leader.candidate if leader else None, revision.candidate),
        }
    return {"lines": list(places), "candidates": candidates, "attempts": attempts}


def _change(sources: dict[str, str], old: str | None, new: str) -> dict[str, Any] | None:
    """None where there is nothing to compare."""
    if old not in sources or new not in sources or old == new:
        return None
    try:
        made: list[Change] = changes(lines_of(sources[old]), lines_of(sources[new]))
    except UsageError:
        return None
    return {"from": old, "changes": [list(change) for change in made]}


def _tail(text: str) -> str:
    lines = text.rstrip().splitlines()
    cut = [f"... {len(lines) - _TAIL} lines before"] if len(lines) > _TAIL else []
    return "\n".join([*cut, *lines[-_TAIL:]])
