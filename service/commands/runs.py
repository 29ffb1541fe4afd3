"""`ringsmith runs`: the records of runs."""

from __future__ import annotations

import json as json_module
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.errors import HarnessError, RingsmithError, UsageError
from harness.wording import one_line, plain
from runs import control
from runs.events import (
    AgentCalled,
    Event,
    LaneStarted,
    ModelReplied,
    PersonActed,
    ResultsShortened,
    RunFinished,
    RunResumed,
    RunStarted,
    ToolReturned,
)
from runs.fold import Run
from runs.record import DEFAULT_ROOT, Record
from runs.requests import request_of
from runs.sweep_record import SweepRecord, sweeps_in
from runs.wording import charged, speedups, when
from service.options import Json, RunsDir
from service.progress import asked
from service.render import attempts_table, run_summary
from service.text import columns, indent

app = typer.Typer(
    help="List runs, show or export some, or enter one that goes on.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("list")
def list_runs(
    runs_dir: RunsDir = DEFAULT_ROOT,
    limit: Annotated[int, typer.Option(min=1, help="At most this many, newest first.")] = 20,
    json: Json = False,
) -> None:
    """List runs, newest first; those of sweeps are in folders of their own. A record that cannot be read is named on
    stderr and left out."""
    rows = [("RUN", "STARTED", "MODEL", "STATUS", "ATTEMPTS", "BEST")]
    sweeps = sweeps_in(runs_dir)
    own = {sweep.path for sweep in sweeps}
    for record in [record for record in Record.list(runs_dir) if record.path not in own][:limit]:
        try:
            run = record.run()
        except (RingsmithError, OSError) as error:
            warn(str(error))
            continue
        if json:
            typer.echo(json_module.dumps(_facts(run, record.path)))
            continue
        best = (speedups(run.best.measurement) or "correct, not timed") if run.best else "none"
        status = f"{run.status}: {run.reason}" if run.reason else run.status
        rows.append((run.run_id, when(run.started_at), run.config.model, status, str(run.evaluated), best))
    if not json:
        typer.echo(columns(rows))
    if sweeps:
        names = one_line(", ".join(sweep.name for sweep in sweeps))
        one = sweeps[0] if len(sweeps) == 1 else SweepRecord(sweeps[0].path.with_name("NAME"))
        count = f"{len(sweeps)} sweep{'s' if len(sweeps) > 1 else ''}"
        typer.echo(f"also {count} ({names}): ringsmith runs list --runs-dir {plain(str(one.runs))}", err=True)


@app.command("show")
def show(
    run: Annotated[str, typer.Argument(help="Run id, path of a record, or `latest`.")],
    runs_dir: RunsDir = DEFAULT_ROOT,
    transcript: Annotated[
        bool, typer.Option("--transcript", help="Also what was said and which tools were called.")
    ] = False,
    json: Json = False,
) -> None:
    """Show a run: attempts (the best is starred), official evaluation, spend."""
    record = find_record(run, runs_dir)
    folded = record.run()
    if json:
        typer.echo(folded.model_dump_json())
        if transcript:
            for event in record.events():
                typer.echo(event.model_dump_json())
        return
    if transcript:
        for event in record.events():
            if text := _told(event):
                typer.echo(text)
        typer.echo()
    if folded.attempts:
        typer.echo(attempts_table(folded.attempts, folded.best))
    typer.echo(run_summary(folded, record.path))
    for request in control.pending(record.path):
        typer.echo(f"not taken yet: {request.action or one_line(request.fault)}")


@app.command("request")
def request(
    run: Annotated[str, typer.Argument(help="Run id, path of a record, or `latest`.")],
    step: Annotated[int, typer.Argument(min=1, help="Number of the model's reply; `show --transcript` has them.")],
    runs_dir: RunsDir = DEFAULT_ROOT,
) -> None:
    """Print the body of the request that a step's reply answered, as it was sent: parameters, tools, conversation."""
    body = request_of(find_record(run, runs_dir).events(), step)
    typer.echo(json_module.dumps(body, indent=2))  # in ASCII: what a model wrote must not reach the terminal raw


class ExportFormat(StrEnum):
    chat_jsonl = "chat-jsonl"
    inspect = "inspect"
    html = "html"


class Steps(StrEnum):
    final = "final"
    all = "all"


@app.command("export")
def export(
    runs: Annotated[
        list[str], typer.Argument(help="Runs and sweeps by name, folders of them, or `latest`.", metavar="RUN...")
    ],
    form: Annotated[ExportFormat, typer.Option("--format", help="What to write.")] = ExportFormat.chat_jsonl,
    steps: Annotated[
        Steps, typer.Option(help="chat-jsonl: the whole conversation, or the task and the graded candidate alone.")
    ] = Steps.all,
    out: Annotated[
        Path | None,
        typer.Option(
            help="chat-jsonl: file, default stdout. inspect: folder, default `logs`. html: file, or a folder for "
            "several runs; default RUN.html."
        ),
    ] = None,
    runs_dir: RunsDir = DEFAULT_ROOT,
) -> None:
    """Write runs as chat messages (for training), as Inspect logs, one per configuration, or as HTML, one file each."""
    from tools.catalogue import schemas

    paths = [find_runs(run, runs_dir) for run in runs]
    try:
        if form is ExportFormat.html:
            _export_html(paths, out)
            return
        if form is ExportFormat.inspect:
            _export_inspect(paths, schemas(), out or Path("logs"))
        else:
            _export_chat(paths, schemas(), steps, out)
    except OSError as error:
        raise HarnessError(f"cannot write {error.filename}: {error.strerror}") from error


def _export_chat(paths: list[Path], tools: list[dict[str, Any]], steps: Steps, out: Path | None) -> None:
    from runs.exports.chat import chat_lines
    from runs.loading import all_records, read_each

    def read(record: Record) -> list[str]:
        return list(chat_lines(record, tools, steps.value))

    written = empty = 0
    with out.open("w", encoding="utf-8") if out else nullcontext() as file:
        for lines in read_each(all_records(paths), read, warn):
            for line in lines:
                typer.echo(line, file=file)
            written, empty = written + len(lines), empty + (not lines)
    without = f"; {empty} runs have no graded candidate" if empty else ""
    typer.echo(f"{written} conversations{without}", err=True)


def _export_inspect(paths: list[Path], tools: list[dict[str, Any]], folder: Path) -> None:
    from runs.exports.inspect_log import write_log
    from runs.report.study import study

    found = study(paths)
    for line in found.unreadable:
        warn(line)
    for group in found.groups:
        typer.echo(str(write_log(group.rows, group.label, tools, folder)))


def _export_html(paths: list[Path], out: Path | None) -> None:
    from runs.exports.page import run_page
    from runs.html import drawing
    from runs.loading import all_records, read_each

    def read(record: Record) -> tuple[str, str]:
        record.started()  # its error names the record
        return record.run_id, run_page(record)

    drawing.require_matplotlib()
    found = all_records(paths)
    folder = out if out is not None and (len(found) > 1 or out.is_dir()) else None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    for run_id, text in read_each(found, read, warn):
        file = folder / f"{run_id}.html" if folder else out or Path(f"{run_id}.html")
        # What a model wrote may hold half a surrogate pair.
        file.write_text(text, encoding="utf-8", errors="replace")
        typer.echo(str(file))


def warn(line: str) -> None:
    typer.echo(f"warning: {one_line(line, 400)}", err=True)


def find_runs(name: str, runs_dir: Path) -> Path:
    """A run or a sweep by its name, or any folder with some (`runs.loading.records`). UsageError if there is none."""
    if _is_name(name):
        for path in (runs_dir / name, runs_dir / "sweeps" / name):
            if path.is_dir():
                return path
    return Path(name) if Path(name).is_dir() else find_record(name, runs_dir).path


def find_record(run: str, runs_dir: Path) -> Record:
    """The record meant, one of a sweep's too. UsageError if there is none."""
    if run == "latest":
        records = Record.list(runs_dir)
        if not records:
            raise UsageError(f"no runs in {runs_dir}")
        return records[0]
    swept = [sweep.runs / run for sweep in sweeps_in(runs_dir)] if _is_name(run) else []
    for path in (runs_dir / run, *swept, Path(run)):
        if path.is_dir():
            return Record.open(path)
    raise UsageError(f"no run {run!r} in {runs_dir}, and no such folder; see `ringsmith runs list`")


def _is_name(text: str) -> bool:
    """Whether it could be a folder's name, and is no path."""
    return Path(text).name == text != ".."


def _facts(run: Run, path: Path) -> dict[str, object]:
    best = run.best.model_dump(mode="json") if run.best else None
    return {
        "run_id": run.run_id,
        "path": str(path),
        "problem": run.config.problem,
        "case": run.config.case,
        "platform": run.config.platform,
        "world_size": run.config.world_size,
        "model": run.config.model,
        "strategy": run.config.strategy,
        "lanes": run.lanes,
        "status": run.status,
        "reason": run.reason,
        "target_met": run.target_met,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "helped": run.helped,
        "attempts": run.evaluated,
        "best": best,
        "spend": run.spend.model_dump(mode="json"),
    }


def _told(event: Event) -> str:
    """One event as the transcript tells it; empty for what the summary says anyway."""
    if isinstance(event, RunStarted):
        return "\n".join(f"[{message.role}]\n{indent(message.text)}" for message in event.messages)
    if isinstance(event, ModelReplied):
        calls = [f"  -> {one_line(call.name)}\n{indent(call.arguments, '     ')}" for call in event.turn.tool_calls]
        said = [indent(event.turn.text)] if event.turn.text else []
        of = f", {event.purpose}" if event.purpose else ""
        return "\n".join([f"[step {event.step}{of}]", *said, *calls])
    if isinstance(event, AgentCalled):
        return f"[step {event.step}]\n  -> {one_line(event.call.name)}\n{indent(event.call.arguments, '     ')}"
    if isinstance(event, PersonActed):
        return "\n".join([f"[person: {asked(event)}]", *([indent(event.told)] if event.told else [])])
    if isinstance(event, ToolReturned):
        return f"[{one_line(event.call.name)}{'' if event.ok else ', refused'}]\n{indent(event.text)}"
    if isinstance(event, LaneStarted):
        return f"[lane {event.lane}]\n{indent(event.text)}".rstrip()
    if isinstance(event, RunFinished):
        return ""
    if isinstance(event, RunResumed):
        return f"[resumed{f', from here on priced by {charged(event.prices)}' if event.prices else ''}]"
    if isinstance(event, ResultsShortened):
        return f"[results up to step {event.through} shortened from here on]"
    return f"[loop]\n{indent(event.text)}"
