"""`ringsmith mcp`: agents from outside lead runs, through the Model Context Protocol."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.errors import UsageError
from harness.wording import one_line
from problems.catalogue import find
from runs.events import Event, RunConfig, RunFinished, RunStarted
from runs.record import DEFAULT_ROOT, Record
from service.commands.run import exit_code
from service.commands.runs import find_record
from service.options import (
    BackendName,
    CaseName,
    CheckName,
    Collectives,
    DeviceSeconds,
    DTypeName,
    Isolation,
    Platform,
    ProtocolName,
    RunsDir,
    SandboxAddress,
    SandboxCa,
    SandboxToken,
    SpeedupTarget,
    Suite,
    Trials,
    Wall,
    WorldSize,
    given,
    place,
    resolve,
)
from service.progress import RunProgress, stderr_console
from service.render import run_summary

if TYPE_CHECKING:
    from agent.external import External
    from service.mcp.http import Address, Rules
    from service.mcp.seat import Opener

OnEvent = Callable[[Event], None]
TOKEN = "RINGSMITH_MCP_TOKEN"
_OF_SERVER = {
    "resume", "runs_dir", "http", "host", "port", "allow_host", "max_runs", "idle", "sandbox", "sandbox_ca",
    "sandbox_token_file",
}  # fmt: skip


def mcp(
    context: typer.Context,
    problem: Annotated[str | None, typer.Option(help="Number or name; `problems list` shows them.")] = None,
    suite: Suite = "",
    case: CaseName = None,
    platform: Platform = None,
    world_size: WorldSize = None,
    dtype: DTypeName = None,
    backend: BackendName = None,
    steps: Annotated[int, typer.Option(min=1, help="Limit of tool calls.")] = 100,
    wall: Wall = None,
    device_seconds: DeviceSeconds = None,
    speedup_target: SpeedupTarget = None,
    protocol: ProtocolName = "ringsmith",
    check: CheckName = "oracle",
    trials: Trials = 3,
    isolation: Isolation = "auto",
    collectives: Collectives = "allow",
    sandbox: SandboxAddress = "",
    sandbox_ca: SandboxCa = None,
    sandbox_token_file: SandboxToken = None,
    agent: Annotated[
        str, typer.Option(metavar="NAME", help="Who leads the runs, in their records. Default: what its client says.")
    ] = "",
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Go on with a run that an agent led and that was interrupted or killed: `latest`, its name, or its "
            "folder. Its own settings hold.",
        ),
    ] = None,
    http: Annotated[
        bool, typer.Option("--http", help="Serve streamable HTTP, a run for each session, instead of stdin and stdout.")
    ] = False,
    host: Annotated[str, typer.Option(help=f"Address to serve. Others than loopback need {TOKEN} set.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8766,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="By which name clients call this host, if by another than --host's."),
    ] = None,
    max_runs: Annotated[int, typer.Option(min=1, help="Runs at once, over HTTP.")] = 4,
    idle: Annotated[
        float, typer.Option(min=1.0, metavar="SECONDS", help="Without a call, after which an HTTP session's run ends.")
    ] = 3600.0,
    runs_dir: RunsDir = DEFAULT_ROOT,
) -> None:
    """Serve the tools of one problem to an agent that brings its own model (Claude Code, Codex, Gemini CLI, ...).

    The first call begins a run: the same tools, budgets and record as `ringsmith run`, and the same official evaluation
    when the agent submits or leaves. stdout belongs to the protocol; progress goes to stderr. Exit codes as `run`; 0 if
    no run was begun, 130 when an HTTP server is told to stop. docs/mcp.md has the clients' configurations.
    """
    if find_spec("mcp") is None:
        raise UsageError("this needs the MCP SDK: pip install 'ringsmith[mcp]'")
    where = place(sandbox, sandbox_ca, sandbox_token_file)
    elsewhere = where.address if "sandbox" in given(context) else None
    record = find_record(resume, runs_dir) if resume is not None else None
    if record is not None:
        if others := given(context) - _OF_SERVER:
            raise UsageError(f"--resume goes on with a run's own settings: leave out {', '.join(sorted(others))}")
        config = _led(record)
    else:
        if problem is None:
            raise UsageError("say which problem: --problem ID (`ringsmith problems list`), or --resume RUN")
        entry = find(problem, suite)
        setup = resolve(platform, world_size, dtype, backend, where)
        from service.asked import Settings  # on demand: other commands start faster without

        settings = Settings(
            case=case,
            protocol=protocol,
            check=check,
            trials=trials,
            isolation=isolation,
            collectives=collectives,
            steps=steps,
            wall=wall,
            device_seconds=device_seconds,
            speedup_target=speedup_target,
            strategy="loop",
        )
        config = settings.config(setup, entry, "external:mcp", sandbox=where.address)

    def opener(on_event: OnEvent) -> Opener:
        """Of a new run for the agent of a name, or of the one in the record."""

        def opened(name: str) -> AbstractContextManager[External]:
            from service.run import open_external, reopen_external

            if record is not None:
                return reopen_external(record, on_event=on_event, where=elsewhere, access=where.access)
            named = config.model_copy(update={"model": f"external:{name}"})
            return open_external(named, root=runs_dir, on_event=on_event, access=where.access)

        return opened

    if http:
        from harness.remote.credentials import token_hash
        from service.mcp.http import Address, Rules

        token = os.environ.get(TOKEN, "")
        address = Address(host, port, tuple(allow_host or ()), token_hash(token, TOKEN) if token else None)
        _over_http(config, opener, address, Rules(max_runs, idle), agent)
    if others := given(context) & {"host", "port", "allow_host", "max_runs", "idle"}:
        raise UsageError(f"{', '.join(sorted(others))}: only with --http")
    _over_stdio(config, opener, record.path.parent if record is not None else runs_dir, agent)


def _over_stdio(config: RunConfig, opener: Callable[[OnEvent], Opener], runs_dir: Path, agent: str) -> None:
    from service.mcp.apart import split

    # At a terminal a person types, who may wait for what Ctrl-C does.
    code = None if os.isatty(0) else split()
    if code is not None:
        raise typer.Exit(code)
    from service.mcp.seat import Seat
    from service.mcp.server import make
    from service.mcp.stdio import serve

    progress = RunProgress(stderr_console())

    def watch(event: Event) -> None:
        with _without_reader():
            progress(event)

    seat = Seat(opener(watch))
    run = serve(make(config, lambda request: seat, agent), seat)
    progress.close()
    if run is not None:
        with _without_reader():
            print(run_summary(run, runs_dir / run.run_id), file=sys.stderr, flush=True)
        raise typer.Exit(exit_code(run))
    if seat.failure is not None:
        raise seat.failure
    raise typer.Exit(0)


def _without_reader() -> AbstractContextManager[None]:
    """For what is said to a log on the way: who reads it may be gone, and the run must be graded all the same."""
    return suppress(OSError, SystemExit)  # SystemExit is what rich makes of a broken pipe


def _over_http(
    config: RunConfig, opener: Callable[[OnEvent], Opener], address: Address, rules: Rules, agent: str
) -> None:
    from service.mcp.http import serve

    def said(url: str) -> None:
        print(f"serving problem {config.problem} at {url}; Ctrl-C interrupts the runs", file=sys.stderr, flush=True)

    serve(config, opener(_say), address, rules, agent=agent, said=said)
    raise typer.Exit(130)


def _led(record: Record) -> RunConfig:
    """Its configuration. Raises UsageError for a run that no agent from outside leads."""
    config = record.started().config
    if not config.model.startswith("external:"):
        raise UsageError(f"run {record.run_id} is led by {config.model}: `ringsmith run --resume` goes on with it")
    return config


def _say(event: Event) -> None:
    """Of several runs at once, when each begins and ends."""
    if isinstance(event, RunStarted):
        line = f"run {event.run_id}: {event.config.model} begins"
    elif isinstance(event, RunFinished):
        verdict = event.official.verdict if event.official else "no official evaluation"
        line = f"a run has ended: {one_line(event.reason, 200)}; {verdict}"
    else:
        return
    with _without_reader():
        print(line, file=sys.stderr, flush=True)
