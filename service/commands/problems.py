"""`ringsmith problems`: the catalogue."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from typing import Annotated, Any

import typer

from harness.types import DType
from problems.catalogue import Entry, entries, find, load, statement
from problems.spec import Case, Work
from service.options import DTypeName, Json, WorldSize, resolve
from service.text import columns, plain

app = typer.Typer(help="List the problems, or show one.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_problems(
    family: Annotated[str | None, typer.Option(help="Only this family.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only problems with this tag.")] = None,
    json: Json = False,
) -> None:
    """List the problems."""
    found = [
        entry
        for entry in entries()
        if (family is None or entry.family == family) and (tag is None or tag in entry.tags)
    ]
    if json:
        for entry in found:
            typer.echo(json_module.dumps(_facts(entry)))
        return
    header = ("ID", "NAME", "FAMILY", "CASES", "TITLE")
    typer.echo(columns([header, *((str(e.number), e.name, e.family, ",".join(e.cases), e.title) for e in found)]))


@app.command("show")
def show(
    problem: Annotated[str, typer.Argument(help="Number or name.")],
    world_size: WorldSize = None,
    dtype: DTypeName = None,
    json: Json = False,
) -> None:
    """Show a problem as a model sees it, its cases and the work that no solution can avoid."""
    entry = find(problem)
    setup = resolve(None, world_size, dtype, None)
    work = {name: _work(entry, case, setup.world_size, setup.dtype) for name, case in entry.cases.items()}
    if json:
        floors = {name: asdict(floor) if isinstance(floor, Work) else floor for name, floor in work.items()}
        seen = {"statement": statement(entry), "world_size": setup.world_size, "dtype": setup.dtype, "work": floors}
        typer.echo(json_module.dumps({**_facts(entry), **seen}))
        return
    typer.echo(f"{entry.number} {entry.name}: {entry.title}")
    tags = ", ".join(entry.tags) or "none"
    typer.echo(f"family {entry.family}; source {entry.source}; tags {tags}; tolerance {entry.tolerance}\n")
    typer.echo(plain(statement(entry)))
    typer.echo(f"Work of the busiest rank, {setup.world_size} ranks, {setup.dtype}:")
    header = ("CASE", "GFLOP", "HBM MB", "LINK OUT MB", "LINK IN MB", "SIZES")
    typer.echo(columns([header, *(_work_row(entry.cases[name], floor) for name, floor in work.items())]))


def _work(entry: Entry, case: Case, world_size: int, dtype: DType) -> Work | str:
    """Of the busiest rank in one call; text if the problem cannot run on that many ranks. Imports torch."""
    problem = load(entry.number)
    if reason := problem.illegal(case, world_size):
        return reason

    import torch

    return problem.work(case, world_size, getattr(torch, dtype).itemsize)


def _work_row(case: Case, floor: Work | str) -> tuple[str, ...]:
    sizes = ", ".join(f"{key}={value}" for key, value in case.sizes.items())
    if isinstance(floor, str):
        return (case.name, "-", "-", "-", "-", f"{sizes} ({floor})")
    megabytes = (floor.hbm_bytes, floor.link_out_bytes, floor.link_in_bytes)
    return (case.name, f"{floor.flops / 1e9:.3g}", *(f"{size / 1e6:.3g}" for size in megabytes), sizes)


def _facts(entry: Entry) -> dict[str, Any]:
    return {
        "number": entry.number,
        "name": entry.name,
        "title": entry.title,
        "family": entry.family,
        "source": entry.source,
        "tags": list(entry.tags),
        "tolerance": entry.tolerance,
        "cases": {name: dict(case.sizes) for name, case in entry.cases.items()},
    }
