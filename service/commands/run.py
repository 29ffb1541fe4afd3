"""`ringsmith run`: one agentic run on one problem."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable
from typing import Annotated

import typer

from harness.errors import UsageError
from harness.types import PlatformName
from problems.catalogue import find
from runs.events import Event
from runs.fold import Run
from runs.record import DEFAULT_ROOT
from service import presets
from service.commands.runs import find_record
from service.options import (
    BackendName,
    CaseName,
    CheckName,
    Collectives,
    ContextTokens,
    DeviceSeconds,
    DTypeName,
    Isolation,
    Json,
    Platform,
    ProtocolName,
    RunsDir,
    SandboxAddress,
    SandboxCa,
    SandboxToken,
    SpeedupTarget,
    Steps,
    StrategyName,
    Suite,
    Tokens,
    Trials,
    Usd,
    Wall,
    WorldSize,
    given,
    place,
    resolve,
)
from service.progress import RunProgress, stderr_console
from service.render import run_summary

EXAMPLES = DEFAULT_ROOT.parent / "examples"
"""Recorded runs that ship with Ringsmith: `pNN-<platform>`, replayed where no provider's key is set."""

_WITH_RESUME = {"resume", "runs_dir", "json", "sandbox", "sandbox_ca", "sandbox_token_file"}


def run(
    context: typer.Context,
    problem: Annotated[str | None, typer.Argument(help="Number or name; `problems list` shows them.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="PROVIDER/MODEL (docs/models.md), or replay:PATH. Default without a key: a recording."),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            is_eager=True,
            callback=presets.begin,
            help=f"Settings by one name; flags that are given win. {presets.listed()}.",
        ),
    ] = None,
    suite: Suite = "",
    case: CaseName = None,
    platform: Platform = None,
    world_size: WorldSize = None,
    dtype: DTypeName = None,
    backend: BackendName = None,
    steps: Steps = 20,
    tokens: Tokens = None,
    usd: Usd = None,
    wall: Wall = None,
    device_seconds: DeviceSeconds = None,
    speedup_target: SpeedupTarget = None,
    strategy: StrategyName = "phased",
    context_tokens: ContextTokens = 150_000,
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
        typer.Option(
            metavar="RUN",
            help="Go on with a run whose process was killed, interrupted or failed: `latest`, its name, or its folder. "
            "Its own settings hold; give no others, but for another --sandbox.",
        ),
    ] = None,
    runs_dir: RunsDir = DEFAULT_ROOT,
    json: Json = False,
) -> None:
    """Have a model write a kernel for a problem. Ctrl-C ends the run, keeps its record and says where it is.

    Exit code 0: the best candidate, evaluated afresh, met the target (without one: is correct); 1: not; 2: usage;
    3: the harness or the provider failed; 130: interrupted.
    """
    where = place(sandbox, sandbox_ca, sandbox_token_file)
    console = stderr_console()
    progress = RunProgress(console)
    # A program that reads the result watches nothing.
    on_text = progress.said if console.is_terminal and not json else None
    if resume is not None:
        if others := given(context) - _WITH_RESUME:
            raise UsageError(f"--resume goes on with a run's own settings: leave out {', '.join(sorted(others))}")
        record = find_record(resume, runs_dir)

        def start(on_event: Callable[[Event], None]) -> Run:
            from service.run import resume_one

            elsewhere = where.address if "sandbox" in given(context) else None
            return resume_one(record, on_event=on_event, on_text=on_text, where=elsewhere, access=where.access)
    else:
        if problem is None:
            raise UsageError("say which problem (`ringsmith problems list`), or --resume RUN")
        entry = find(problem, suite)
        setup = resolve(platform, world_size, dtype, backend, where)
        if preset is not None:
            presets.check(preset, setup.platform, asked_for=platform is not None)
        from service.asked import Settings  # on demand: other commands start faster without

        settings = Settings(
            case=case,
            protocol=protocol,
            check=check,
            trials=trials,
            isolation=isolation,
            collectives=collectives,
            steps=steps,
            tokens=tokens,
            usd=usd,
            wall=wall,
            device_seconds=device_seconds,
            speedup_target=speedup_target,
            strategy=strategy,
            context_tokens=context_tokens,
        )
        chosen = model or _recording(entry.number, setup.platform)
        config = settings.config(setup, entry, chosen, sandbox=where.address)

        def start(on_event: Callable[[Event], None]) -> Run:
            from service.run import run_one

            return run_one(config, root=runs_dir, on_event=on_event, on_text=on_text, access=where.access)

    try:
        done = start(progress)
    finally:
        progress.close()
    path = record.path if resume is not None else runs_dir / done.run_id
    if json:
        typer.echo(json_module.dumps({"path": str(path), **json_module.loads(done.model_dump_json())}))
    else:
        typer.echo(run_summary(done, path))
    raise typer.Exit(exit_code(done))


def _recording(problem: int, platform: PlatformName) -> str:
    """The packaged recording, as a model's name. UsageError if there is none, or if a key is set."""
    from harness.machine import keys

    if names := keys():
        raise UsageError(f"say which model: --model PROVIDER/MODEL, e.g. openai/gpt-5 ({', '.join(names)} set)")
    path = EXAMPLES / f"p{problem:02d}-{platform}"
    if not path.is_dir():
        raise UsageError(
            "no --model given, no provider's key in the environment, "
            f"and no recording of problem {problem} on {platform} to replay"
        )
    typer.echo(
        f"no --model and no provider's key: replaying the recorded run {path} (its tool calls really run)", err=True
    )
    return f"replay:{path}"


def exit_code(run: Run) -> int:
    """Of a command that ends with this run."""
    reason = run.reason or ""
    if reason == "interrupted":
        return 130
    if reason.startswith("error:"):
        return 3
    return 0 if run.target_met else 1
