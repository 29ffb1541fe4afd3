"""`ringsmith sweep`: problems x models x samples, each cell a run."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from harness.errors import UsageError
from runs.record import DEFAULT_ROOT
from runs.sweep import Plan
from runs.sweep_record import SweepRecord, sweep_record
from service import presets
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
    access,
    finite,
    given,
)

if TYPE_CHECKING:
    from harness.sandboxes import Access
    from service.plan import Wanted
    from service.sweep import Engine
    from service.tally import Tally

EngineName = Literal["local", "ray"]
_NOT_OF_THE_PLAN = {"plan", "sandbox_ca", "sandbox_token_file", "engine", "dry_run", "runs_dir", "json"}


def sweep(
    context: typer.Context,
    problems: Annotated[
        str | None, typer.Option(help="`all`, or numbers, names, 8-12, family:NAME, tag:NAME, by commas.")
    ] = None,
    models: Annotated[
        str | None, typer.Option(help="PROVIDER/MODEL,... (docs/models.md), replay:PATH or scripted:FOLDER.")
    ] = None,
    samples: Annotated[int, typer.Option("--samples", "-k", min=1, help="Runs of each model on each problem.")] = 1,
    name: Annotated[str | None, typer.Option(help="Of the sweep; the same name again goes on with it.")] = None,
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML with the same keys as these flags, which win.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help=f"Settings by one name; flags and the plan's keys win. {presets.listed()}.")
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
    timing: Annotated[
        bool, typer.Option("--timing/--no-timing", help="Whether to time candidates that are right.")
    ] = True,
    isolation: Isolation = "auto",
    collectives: Collectives = "allow",
    sweep_usd: Annotated[
        float | None, typer.Option(min=0.0, callback=finite, help="Limit of cost of all runs together, US dollars.")
    ] = None,
    sweep_tokens: Annotated[int | None, typer.Option(min=1, help="Limit of tokens of all runs together.")] = None,
    sweep_gpu_hours: Annotated[
        float | None, typer.Option(min=0.0, callback=finite, help="Limit of hours x devices under lease, all runs.")
    ] = None,
    sweep_wall: Annotated[
        float | None,
        typer.Option(min=1.0, callback=finite, metavar="SECONDS", help="Limit of time that the sweep is worked on."),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=1000, help="Runs that go on at once.")] = 16,
    retries: Annotated[
        int, typer.Option(min=0, max=20, help="How often a run that failed for no fault of its model's goes on again.")
    ] = 2,
    sandbox: SandboxAddress = "",
    sandbox_ca: SandboxCa = None,
    sandbox_token_file: SandboxToken = None,
    engine: Annotated[
        EngineName, typer.Option(help="Where candidates are evaluated: on this machine, or on a Ray cluster's nodes.")
    ] = "local",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and what it is expected to use.")] = False,
    runs_dir: RunsDir = DEFAULT_ROOT,
    json: Json = False,
) -> None:
    """Run models on problems, several times each; the same command again goes on where it ended.

    A sweep that exists may be widened (more problems, models, samples); other settings are refused. Ctrl-C ends the
    runs under way as interrupted; SIGUSR1, or a file `drain` in the sweep's folder, lets them end and begins no more.

    Exit code 0: every run has its result; 1: a cap was reached or it was drained; 2: usage; 3: runs failed because of
    the machine or a provider; 130: interrupted.
    """
    # Imported on demand: other commands start faster without.
    from service.plan import check_models, make_plan, wanted, widen

    flags = {key: context.params[key] for key in given(context) - _NOT_OF_THE_PLAN}
    asked = wanted(plan, flags)
    keys = frozenset(asked.model_fields_set)
    chosen = asked.name or (plan.stem if plan is not None else None)
    if chosen is None:
        raise UsageError("say --name: a sweep is gone on with by its name")
    record = sweep_record(runs_dir, chosen)
    shown = access(sandbox_ca, sandbox_token_file)
    resolved = widen(record.plan(), asked, keys) if record.exists() else make_plan(asked, chosen, shown)
    if engine != "local" and resolved.common.get("sandbox"):
        raise UsageError(f"--sandbox says where candidates are evaluated: leave out --engine {engine}")
    if asked.preset is not None:
        presets.check(
            asked.preset,
            resolved.common["platform"],
            asked_for=asked.platform is not None or record.exists(),
        )
    if dry_run:
        return _dry_run(resolved, asked.sweep_usd, runs_dir, json)
    check_models(resolved, asked.sweep_usd)
    with record:
        record.open_to_write()
        # Once more under the lock: another process may have widened it just now.
        resolved = widen(record.plan(), asked, keys) if record.exists() else resolved
        _say_changes(record, resolved)
        record.lock_plan(resolved)
        reason, tally = _run(record, resolved, asked, engine, shown)
    _report(record, resolved, tally, reason, json)
    raise typer.Exit(_exit_code(reason, tally))


def _dry_run(plan: Plan, sweep_usd: float | None, runs_dir: Path, json: bool) -> None:
    from service.estimate import estimate
    from service.plan import check_models
    from service.sweep_progress import plan_text

    try:
        check_models(plan, sweep_usd)
    except UsageError as error:  # a plan may be made where no key is
        typer.echo(f"warning: the sweep would be refused here: {error}", err=True)
    forecast = estimate(plan, runs_dir)
    if json:
        typer.echo(
            json_module.dumps(
                {"plan": plan.model_dump(mode="json"), "expected": forecast.model_dump(mode="json")}
                | {"tokens": forecast.tokens, "usd": forecast.usd}
            )
        )
    else:
        typer.echo(plan_text(plan, forecast))


def _run(record: SweepRecord, plan: Plan, asked: Wanted, engine: EngineName, access: Access) -> tuple[str, Tally]:
    from service.progress import stderr_console
    from service.sweep import Sweep
    from service.sweep_progress import SweepProgress, plan_text

    console = stderr_console()
    console.print(plan_text(plan, None))
    progress = SweepProgress(console, plan)
    try:
        with _engine(engine, plan, access) as evaluator:
            running = Sweep(
                record,
                plan,
                evaluator,
                progress,
                engine_name=plan.common.get("sandbox") or engine,
                concurrency=asked.concurrency,
                retries=asked.retries,
                caps=asked.caps(),
            )
            return running.run(), running.tally
    finally:
        progress.close()


@contextmanager
def _engine(name: EngineName, plan: Plan, access: Access) -> Iterator[Engine]:
    common = plan.common
    platform, world_size, isolation = common["platform"], common["world_size"], common["isolation"]
    if name == "ray":
        from service.engines.ray_cluster import cluster

        with cluster(platform, world_size, isolation) as pool:
            yield pool
    else:
        from harness.sandboxes import open_pool

        with open_pool(common.get("sandbox", ""), platform, world_size, isolation, access) as pool:
            yield pool


def _say_changes(record: SweepRecord, plan: Plan) -> None:
    """Prompts and harness may have changed since the plan was made: noted in every record, and said."""
    from agent.prompt import folder_hash
    from harness.machine import harness_version

    for what, then, now in (
        ("prompts", plan.prompts_hash, folder_hash()),
        ("harness", plan.harness, harness_version()),
    ):
        if then != now:
            typer.echo(f"warning: sweep {record.name} was begun with {what} {then}; now it is {now}", err=True)


def _report(record: SweepRecord, plan: Plan, tally: Tally, reason: str, json: bool) -> None:
    from service.sweep_progress import summary
    from service.tally import STATES

    if not json:
        typer.echo(f"{summary(plan, tally, reason)}\nrecord: {record.path}")
        return
    counts = {model: {state: tally.count(state, model) for state in STATES} for model in plan.models}
    facts: dict[str, Any] = {
        "path": str(record.path),
        "name": plan.name,
        "reason": reason,
        "cells": len(tally.cells),
        **{state: tally.count(state) for state in STATES},
        "models": counts,
        "spend": tally.spend.model_dump(mode="json") | {"wall_s": tally.wall_s},
    }
    typer.echo(json_module.dumps(facts))


def _exit_code(reason: str, tally: Tally) -> int:
    if reason == "interrupted":
        return 130
    if reason.startswith("error:") or tally.count("failed"):
        return 3
    return int(tally.left > 0)
