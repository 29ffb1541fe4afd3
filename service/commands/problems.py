"""`ringsmith problems`: the catalogue."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from harness import calibration, platforms, roofline
from harness.errors import UsageError
from harness.roofline import Floors
from harness.wording import plain
from problems.catalogue import Entry, entries, find, load, statement
from problems.spec import Case, ProblemError, Work
from service.options import DTypeName, Json, Platform, Setup, Suite, WorldSize, resolve
from service.text import columns

app = typer.Typer(help="List the problems, show one, or begin one.", no_args_is_help=True, rich_markup_mode=None)

TEMPLATE = Path(__file__).parent / "new_problem.py.txt"


@app.command("list")
def list_problems(
    family: Annotated[str | None, typer.Option(help="Only this family.")] = None,
    tag: Annotated[
        str | None, typer.Option(help="Only problems with this tag: a collective, e.g. all_to_all, or a feature.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="Only from sources whose name contains this.")] = None,
    min_mb: Annotated[
        float | None, typer.Option(min=0, help="Only with at least so many MB over a rank's link per call.")
    ] = None,
    max_mb: Annotated[float | None, typer.Option(min=0, help="Only with at most so many.")] = None,
    suite: Suite = "",
    world_size: WorldSize = None,
    dtype: DTypeName = None,
    json: Json = False,
) -> None:
    """List the problems. Sizes of communication are those of the default case."""
    found = [entry for entry in entries(suite) if source is None or source.lower() in entry.source.lower()]
    for kind, name in (("family", family), ("tag", tag)):
        if name is not None:
            from service.plan import select

            numbers = {entry.number for entry in select(f"{kind}:{name}", suite)}
            found = [entry for entry in found if entry.number in numbers]
    link_mb: dict[int, float | None] = {}
    if json or min_mb is not None or max_mb is not None:
        setup = resolve(None, world_size, dtype, None)
        link_mb = {entry.number: _link_mb(entry, setup) for entry in found}
        found = [
            entry
            for entry in found
            if (size := link_mb[entry.number]) is None
            or ((min_mb is None or size >= min_mb) and (max_mb is None or size <= max_mb))
        ]
    if json:
        for entry in found:
            typer.echo(json_module.dumps({**_facts(entry), "link_mb": link_mb[entry.number]}))
        return
    header = ("ID", "NAME", "FAMILY", "SOURCE", "CASES", "TITLE")
    rows = ((str(e.number), e.name, e.family, e.source, ",".join(e.cases), e.title) for e in found)
    typer.echo(columns([header, *rows]))


@app.command("show")
def show(
    problem: Annotated[str, typer.Argument(help="Number or name.")],
    suite: Suite = "",
    platform: Platform = None,
    world_size: WorldSize = None,
    dtype: DTypeName = None,
    json: Json = False,
) -> None:
    """Show a problem as a model sees it, its cases, the work that no solution can avoid, and how long that takes."""
    entry = find(problem, suite)
    setup = resolve(platform, world_size, dtype, None)
    rows = {name: _row(entry, case, setup) for name, case in entry.cases.items()}
    if json:
        work = {name: row.reason or asdict(row.work) for name, row in rows.items()}
        floors = {name: asdict(row.floors) for name, row in rows.items()}
        seen = {"statement": statement(entry), "world_size": setup.world_size, "dtype": setup.dtype}
        typer.echo(json_module.dumps({**_facts(entry), **seen, "work": work, "floors": floors}))
        return
    typer.echo(f"{entry.number} {entry.name}: {entry.title}")
    tags = ", ".join(entry.tags) or "none"
    typer.echo(f"family {entry.family}; source {entry.source}; tags {tags}; tolerance {entry.tolerance}")
    if entry.repair:
        typer.echo(f"case {entry.default} is not as published: {entry.repair}")
    typer.echo("\n" + plain(statement(entry)))
    typer.echo(f"Work of the busiest rank, {setup.world_size} ranks, {setup.dtype} (* the default case):")
    header = ("CASE", "GFLOP", "HBM MB", "LINK OUT MB", "LINK IN MB", "FLOOR US", "BOUND BY", "HERE US", "SIZES")
    typer.echo(columns([header, *(row.text(name == entry.default) for name, row in rows.items())]))


@app.command("new")
def new(
    path: Annotated[Path, typer.Argument(help="The file to write, e.g. my_problem.py.")],
) -> None:
    """Write a file with a small working problem, to be changed into yours; evaluate with --suite FILE."""
    if path.suffix != ".py":
        raise UsageError(f"{path} must end in .py")
    if path.exists():
        raise UsageError(f"{path} is there already")
    try:
        path.write_text(TEMPLATE.read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
    typer.echo(f"wrote {path}; see it: ringsmith problems show 1 --suite {path}")
    typer.echo(f"run its reference: ringsmith eval reference --problem 1 --suite {path}")


@dataclass(frozen=True)
class _Row:
    """One case on this machine."""

    case: Case
    work: Work
    floors: Floors
    reason: str
    """Why it cannot run so; empty if it can."""

    def text(self, default: bool) -> tuple[str, ...]:
        sizes = ", ".join(f"{key}={value}" for key, value in self.case.sizes.items())
        name = f"{self.case.name}{'*' if default else ''}"
        if self.reason:
            return (name, *["-"] * 7, f"{sizes} ({self.reason})")
        work, floors = self.work, self.floors
        megabytes = (f"{size / 1e6:.3g}" for size in (work.hbm_bytes, work.link_out_bytes, work.link_in_bytes))
        sol = "-" if floors.sol_us is None else f"{floors.sol_us:.3g}"
        here = "-" if floors.achievable_us is None else f"{floors.achievable_us:.3g}"
        return (name, f"{work.flops / 1e9:.3g}", *megabytes, sol, floors.bound_by or "-", here, sizes)


def _row(entry: Entry, case: Case, setup: Setup) -> _Row:
    """Imports torch."""
    problem = load(entry.number, entry.suite)
    if reason := problem.illegal(case, setup.world_size):
        return _Row(case, Work(), Floors(), reason)

    import torch

    work = problem.work(case, setup.world_size, getattr(torch, setup.dtype).itemsize)
    names = platforms.get(setup.platform).device_names()
    stored = calibration.load(setup.platform, names)
    measured = stored.peaks(setup.world_size) if stored else None
    return _Row(case, work, roofline.floors(work, names[0], setup.dtype, setup.world_size, measured), "")


def _link_mb(entry: Entry, setup: Setup) -> float | None:
    """The larger direction of a rank's link at the default case; None if it cannot run here or on so many ranks."""
    import torch

    case = entry.cases[entry.default]
    try:
        problem = load(entry.number, entry.suite)
    except ProblemError:  # somebody's file that needs what is not installed: it is listed all the same
        return None
    if problem.illegal(case, setup.world_size):
        return None
    work = problem.work(case, setup.world_size, getattr(torch, setup.dtype).itemsize)
    return max(work.link_in_bytes, work.link_out_bytes) / 1e6


def _facts(entry: Entry) -> dict[str, Any]:
    return {
        "number": entry.number,
        "name": entry.name,
        "title": entry.title,
        "family": entry.family,
        "source": entry.source,
        "suite": entry.suite,
        "tags": list(entry.tags),
        "tolerance": entry.tolerance,
        "cases": {name: dict(case.sizes) for name, case in entry.cases.items()},
        "default": entry.default,
        "repair": entry.repair,
        "arguments": entry.arguments,
    }
