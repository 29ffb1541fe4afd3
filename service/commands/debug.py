"""`ringsmith debug`: a person leads a run on one problem, in a terminal."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.errors import UsageError
from runs.fold import Run
from runs.record import DEFAULT_ROOT
from service.commands.runs import find_record
from service.options import (
    BackendName,
    CaseName,
    CheckName,
    Collectives,
    DTypeName,
    Isolation,
    Json,
    Platform,
    ProtocolName,
    RunsDir,
    SandboxAddress,
    SandboxCa,
    SandboxToken,
    Suite,
    Trials,
    WorldSize,
    given,
    place,
)
from service.render import run_summary

_WITH_RESUME = {
    "resume", "model", "file", "light", "runs_dir", "json", "sandbox", "sandbox_ca", "sandbox_token_file"
}  # fmt: skip


def debug(
    context: typer.Context,
    problem: Annotated[str | None, typer.Argument(help="Number or name; `problems list` shows them.")] = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN[@ATTEMPT]",
            help="Begin with a candidate of a recorded run (its best; or a number, a hash), and its settings.",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="The candidate's file, e.g. one that is open in an IDE. Default: one beside the record."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Whom to ask for a step: PROVIDER/MODEL (docs/models.md). Default: nobody.")
    ] = None,
    suite: Suite = "",
    case: CaseName = None,
    platform: Platform = None,
    world_size: WorldSize = None,
    dtype: DTypeName = None,
    backend: BackendName = None,
    protocol: ProtocolName = "ringsmith",
    check: CheckName = "oracle",
    trials: Trials = 3,
    isolation: Isolation = "auto",
    collectives: Collectives = "allow",
    sandbox: SandboxAddress = "",
    sandbox_ca: SandboxCa = None,
    sandbox_token_file: SandboxToken = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Go on with an earlier session: `latest`, its name, or its folder."),
    ] = None,
    light: Annotated[bool, typer.Option("--light", help="Colours for a light background; t changes them.")] = False,
    runs_dir: RunsDir = DEFAULT_ROOT,
    json: Json = False,
) -> None:
    """Work on a candidate by hand: edit it in your editor, compile, run, inspect and profile it by single keys, ask a
    model for one step. Everything is recorded, as in `ringsmith run`.

    Exit code 0: left to go on later, or the best attempt passed its official evaluation; 1: it did not; 2: usage;
    3: the harness failed; 130: a signal ended it.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("the debugger needs a terminal (stdin and stderr); `ringsmith eval` does without")
    from service.debugger import settings
    from service.debugger.lead import Opened, lead
    from service.debugger.origin import origin
    from service.run import open_external, reopen_external

    where = place(sandbox, sandbox_ca, sandbox_token_file)
    source: str | None = None
    if resume is not None:
        if others := given(context) - _WITH_RESUME:
            raise UsageError(f"--resume goes on with a run's own settings: leave out {', '.join(sorted(others))}")
        record = find_record(resume, runs_dir)
        config = record.started().config
        model = model or settings.model_of(config)
        folder = record.path.parent
        elsewhere = where.address if "sandbox" in given(context) else None
        opened: Opened = lambda on_event: reopen_external(  # noqa: E731
            record, on_event=on_event, where=elsewhere, access=where.access
        )
    else:
        start = origin(from_, lambda name: find_record(name, runs_dir)) if from_ is not None else None
        if start is not None and file is not None and file.exists():
            raise UsageError(f"{file} exists: leave out --from to work on it, or --file to begin with {from_}")
        values = {
            "problem": problem, "suite": suite, "case": case, "platform": platform, "world_size": world_size,
            "dtype": dtype, "backend": backend, "protocol": protocol, "check": check, "trials": trials,
            "isolation": isolation, "collectives": collectives,
        }  # fmt: skip
        flags = {name: values[name] for name in given(context) & set(values)}
        config = settings.new(flags, start.config if start is not None else None, model, where)
        source = start.source if start is not None else None
        folder = runs_dir
        opened = lambda on_event: open_external(  # noqa: E731
            config, root=runs_dir, on_event=on_event, access=where.access
        )
    run, hung_up = lead(opened, config, root=folder, model=model, file=file, source=source, dark=not light)
    path = folder / run.run_id
    if json:
        typer.echo(json_module.dumps({"path": str(path), **json_module.loads(run.model_dump_json())}))
    else:
        typer.echo(run_summary(run, path))
        if run.reason == "interrupted":
            typer.echo(f"`ringsmith debug --resume {run.run_id}` goes on with it")
    raise typer.Exit(130 if hung_up else _exit_code(run))


def _exit_code(run: Run) -> int:
    if run.reason == "interrupted":  # the person left to go on later
        return 0
    if (run.reason or "").startswith("error:"):
        return 3
    return 0 if run.target_met else 1
