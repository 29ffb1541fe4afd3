"""`ringsmith report`: what many runs show."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.errors import HarnessError, UsageError
from runs.record import DEFAULT_ROOT
from service.commands.runs import find_runs, warn
from service.options import RunsDir, finite

if TYPE_CHECKING:
    from runs.report.study import Study
    from runs.report.table import Table


class Format(StrEnum):
    html = "html"
    csv = "csv"
    json = "json"
    md = "md"
    latex = "latex"


class FigureName(StrEnum):
    headline = "headline"
    eager = "eager"
    device = "device"


def report(
    targets: Annotated[
        list[str], typer.Argument(help="Runs and sweeps by name, folders of them, or `latest`.", metavar="RUN...")
    ],
    form: Annotated[Format, typer.Option("--format", help="What to write.")] = Format.html,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write; for csv a folder, one file per table. Default: report.html, else stdout."),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(help="Only this table (csv on stdout: `runs` unless given); `summary`, `families`, ..."),
    ] = None,
    k: Annotated[
        list[int] | None,
        typer.Option("-k", min=1, help="For pass@k and fast_p@k; may be repeated. Default: 1 and the usual samples."),
    ] = None,
    p: Annotated[float, typer.Option("-p", min=0, callback=finite, help="What fast means: faster than this.")] = 1.0,
    figure: Annotated[
        FigureName, typer.Option(help="Which speed-up; headline: the device's if it could be had.")
    ] = FigureName.headline,
    margin: Annotated[
        float, typer.Option(min=0, callback=finite, help="Noise to stay clear of: faster than p * (1 + margin).")
    ] = 0.0,
    raw: Annotated[
        bool, typer.Option("--raw", help="By the point estimate, as ParallelKernelBench does, not the lower bound.")
    ] = False,
    by_path: Annotated[
        bool, typer.Option("--by-path", help="Tell runs apart by the RUN that they are from: two versions, say.")
    ] = False,
    title: Annotated[str, typer.Option(help="Heading of the page. Default: the paths' names.")] = "",
    runs_dir: RunsDir = DEFAULT_ROOT,
) -> None:
    """Tables and plots of many runs: pass@k and fast_p@k with intervals, failure modes, cost, head to head."""
    from runs.report.study import study as read_study
    from runs.report.tables import tables as make_tables
    from runs.rows import Success

    paths = [find_runs(target, runs_dir) for target in targets]
    fast = Success(p=p, figure=figure.value, margin=margin, raw=raw)
    study = read_study(paths, fast=fast, ks=k or (), title=title, by_path=by_path, processes=os.cpu_count() or 1)
    for line in study.unreadable:
        warn(line)
    made = make_tables(study, empty=table is not None)
    if table is not None:
        known = [one.key for one in made]
        if table not in known:
            raise UsageError(f"no table {table!r}; there are {', '.join(known)}")
        made = [one for one in made if one.key == table]
    try:
        _write(form, study, made, table, out)
    except OSError as error:
        raise HarnessError(f"cannot write {error.filename}: {error.strerror}") from error


def _write(form: Format, study: Study, made: list[Table], table: str | None, out: Path | None) -> None:
    from runs.report import formats

    if form is Format.csv:
        if out is None:
            typer.echo(formats.as_csv(next(one for one in made if one.key == (table or "runs"))), nl=False)
            return
        out.mkdir(parents=True, exist_ok=True)
        for one in made:
            (out / f"{one.key}.csv").write_text(formats.as_csv(one), encoding="utf-8")
        typer.echo(f"{len(made)} tables: {out}", err=True)
        return
    if form is Format.html:
        from runs.report.html import as_html

        text, out = as_html(study, made), out or Path("report.html")
    elif form is Format.json:
        text = formats.as_json(study, made)
    else:
        text = formats.as_markdown(made) if form is Format.md else formats.as_latex(made)
    if out is None:
        typer.echo(text, nl=False)
        return
    out.write_text(text, encoding="utf-8")
    typer.echo(f"report: {out}", err=True)
