"""`ringsmith`, the command line. Results go to stdout, progress and errors to stderr.

Exit codes: 0 done and target met (`eval`: every candidate passed), 1 done but not (`eval`: some candidate failed),
2 usage, 3 infrastructure, 130 interrupted. RINGSMITH_DEBUG=1 adds the traceback to any error.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from harness.errors import RingsmithError, UsageError
from harness.wording import one_line
from problems.spec import ProblemError
from service.commands import (
    debug,
    doctor,
    enter,
    evaluate,
    mcp,
    problems,
    profile,
    regrade,
    report,
    run,
    runs,
    sandbox,
    serve,
    sweep,
)
from service.text import indent

USAGE, INFRASTRUCTURE, INTERRUPTED = 2, 3, 130

app = typer.Typer(
    name="ringsmith",
    help="Have a language model write multi-GPU kernels, and check and time them.",
    epilog="Exit codes: 0 done and target met, 1 done but not (or a candidate failed), 2 usage, 3 infrastructure, "
    "130 interrupted. RINGSMITH_DEBUG=1 shows tracebacks.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("run")(run.run)
app.command("sweep")(sweep.sweep)
app.command("regrade")(regrade.regrade)
app.command("mcp")(mcp.mcp)
app.command("eval")(evaluate.evaluate)
app.command("profile")(profile.profile)
app.command("debug")(debug.debug)
app.add_typer(problems.app, name="problems")
runs.app.command("hint")(enter.hint)
runs.app.command("candidate")(enter.candidate)
runs.app.command("pause")(enter.pause)
runs.app.command("resume")(enter.resume)
runs.app.command("cancel")(enter.cancel)
app.add_typer(runs.app, name="runs")
app.command("report")(report.report)
app.add_typer(sandbox.app, name="sandbox")
app.add_typer(serve.app, name="serve")
app.command("doctor")(doctor.doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        from harness.machine import harness_version

        typer.echo(f"ringsmith {harness_version()}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Have a language model write multi-GPU kernels, and check and time them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; no exception leaves it."""
    try:
        # A run that is asked to end closes its record and its processes, whoever asks.
        for ended in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(ended, signal.default_int_handler)
        app(args=arguments, prog_name="ringsmith")
    except SystemExit as done:
        if _interrupted(done):
            typer.echo("interrupted", err=True)
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED
    except (UsageError, ProblemError) as error:
        return _fail(str(error), USAGE)
    except RingsmithError as error:
        return _fail(str(error), INFRASTRUCTURE)
    except Exception as error:
        name = type(error).__name__
        return _fail(f"internal: {name}: {error} (a bug; RINGSMITH_DEBUG=1 shows where)", INFRASTRUCTURE)
    return 0


def _interrupted(error: BaseException | None) -> bool:
    """Whether a KeyboardInterrupt that no command has answered led to this: typer makes an exit of it, in silence."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _fail(message: str, code: int) -> int:
    """One line; what the harness adds from its ranks' logs follows it, indented."""
    if os.environ.get("RINGSMITH_DEBUG") == "1":
        traceback.print_exc()
    first, _, details = message.partition("\n")
    typer.echo(f"error: {one_line(first, 1000)}", err=True)
    if details:
        typer.echo(indent(details), err=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
