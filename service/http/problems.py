"""The catalogue of problems."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query

from harness.types import Frozen
from problems.catalogue import Entry, entries, find, statement
from problems.spec import ProblemError
from service.http.context import READS
from service.http.errors import responses
from service.http.views import Page

router = APIRouter(prefix="/api/v1/problems", tags=["problems"], responses=responses(401, 403, 404, 422, 429, 503))


class ProblemLine(Frozen):
    """A problem in the list."""

    number: int
    name: str
    title: str
    family: str
    source: str
    tags: tuple[str, ...]
    tolerance: str
    cases: dict[str, dict[str, Any]]
    """Sizes by case."""
    default: str
    """The case that is meant where none is named."""


class ProblemDetail(ProblemLine):
    repair: str
    arguments: tuple[str, ...]
    statement: str
    """The source that a model is shown."""


@router.get("", dependencies=READS)
def listed(
    family: Annotated[str, Query(max_length=200)] = "", tag: Annotated[str, Query(max_length=200)] = ""
) -> Page[ProblemLine]:
    """All problems."""
    found = [e for e in entries() if (not family or e.family == family) and (not tag or tag in e.tags)]
    return Page[ProblemLine](items=tuple(ProblemLine(**_line(entry)) for entry in found), total=len(found))


@router.get("/{problem}", dependencies=READS)
def show(problem: Annotated[str, Path(max_length=100)]) -> ProblemDetail:
    """One problem, by number or name."""
    try:
        entry = find(problem)
    except ProblemError as error:
        raise HTTPException(404, str(error)) from None
    return ProblemDetail(
        **_line(entry), repair=entry.repair, arguments=tuple(entry.arguments), statement=statement(entry)
    )


def _line(entry: Entry) -> dict[str, Any]:
    same = ("number", "name", "title", "family", "source", "tags", "tolerance", "default")
    return {name: getattr(entry, name) for name in same} | {
        "cases": {name: dict(case.sizes) for name, case in entry.cases.items()}
    }
