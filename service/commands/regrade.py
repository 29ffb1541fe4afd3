"""`ringsmith regrade`: evaluate the best candidates of earlier runs again, without a model."""

from __future__ import annotations

import json as json_module
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from harness.errors import UsageError
from harness.types import Candidate, Check, DType, IsolationLevel, PlatformName, Protocol, Request
from harness.wording import one_line
from problems.catalogue import find, select_case
from runs.events import RunConfig
from runs.fold import Run
from runs.loading import read_each, records, unique
from runs.record import DEFAULT_ROOT, Record
from runs.regrade import Regrade, compare, graded_candidate, regrades, save
from runs.sweep_record import SweepRecord
from service.commands.runs import find_runs, warn
from service.options import Json, RunsDir, SandboxCa, SandboxToken, access
from service.progress import stages, stderr_console

_AS_IT_WAS = "Default: as the run had it."


def regrade(
    targets: Annotated[
        list[str], typer.Argument(help="Sweeps and runs by name, folders of them, or `latest`.", metavar="SWEEP|RUN...")
    ],
    case: Annotated[str | None, typer.Option(help=f"Named sizes of the problems. {_AS_IT_WAS}")] = None,
    world_size: Annotated[
        int | None, typer.Option("--world-size", "--gpus", min=1, max=64, help=f"Ranks. {_AS_IT_WAS}")
    ] = None,
    dtype: Annotated[DType | None, typer.Option(help=f"Type of the data. {_AS_IT_WAS}")] = None,
    protocol: Annotated[Protocol | None, typer.Option(help=f"How to time. {_AS_IT_WAS}")] = None,
    check: Annotated[Check | None, typer.Option(help=f"What is right. {_AS_IT_WAS}")] = None,
    isolation: Annotated[IsolationLevel | None, typer.Option(help=f"How candidates are jailed. {_AS_IT_WAS}")] = None,
    trials: Annotated[int | None, typer.Option(min=1, max=100, help=f"Correctness trials. {_AS_IT_WAS}")] = None,
    sandbox: Annotated[
        str | None,
        typer.Option("--sandbox", metavar="ADDRESS", help=f"As of `ringsmith run`; '' is this machine. {_AS_IT_WAS}"),
    ] = None,
    sandbox_ca: SandboxCa = None,
    sandbox_token_file: SandboxToken = None,
    again: Annotated[bool, typer.Option("--again", help="Also those that were regraded so before.")] = False,
    runs_dir: RunsDir = DEFAULT_ROOT,
    json: Json = False,
) -> None:
    """Evaluate the best candidate of every run again, as it was or with other settings, and say what changed.

    Results are written beside the record, which stays as it is; one line each. The same command again does those that
    are left. A record that cannot be read is named on stderr and left out. Exit code 0: nothing changed but what was
    asked for; 1: some verdict or speed-up did; 2: usage, or no record could be read; 3: the harness failed.
    """
    from harness.sandboxes import checked, open_sandbox

    # What is left out of the command line stays as the run had it.
    changed = {"case": case, "world_size": world_size, "dtype": dtype, "protocol": protocol, "check": check}
    changed |= {"isolation": isolation, "trials": trials, "sandbox": None if sandbox is None else checked(sandbox)}
    update = {name: value for name, value in changed.items() if value is not None}
    shown, jobs = access(sandbox_ca, sandbox_token_file), []

    def read(record: Record) -> tuple[Record, Run, Candidate | None, list[Regrade]]:
        run = record.run()
        graded = graded_candidate(run)
        return record, run, record.candidate(graded) if graded else None, [] if again else regrades(record)

    moved, console = False, stderr_console()
    for record, run, candidate, before in read_each(unique(_records(targets, runs_dir)), read, warn):
        config = run.config.model_copy(update=update)
        select_case(find(config.problem, config.suite), config.case)
        if candidate is None:
            console.print(f"{run.run_id}: no correct candidate, nothing to regrade")
            continue
        request = config.request(candidate)
        if any(_same(earlier, request) for earlier in before):
            console.print(f"{run.run_id}: regraded so before (--again does it once more)")
            continue
        jobs.append((record, run, config, request))

    jobs.sort(key=lambda job: _place(job[2]))
    for where, group in groupby(jobs, key=lambda job: _place(job[2])):
        address, platform, ranks, level = where
        with open_sandbox(address, platform, ranks, isolation=level, access=shown) as box:
            for record, run, config, request in group:
                with stages(run.run_id, console) as on_stage:
                    after = box.evaluate(request, on_stage)
                changes = compare(run.official, after, (run.config.protocol, config.protocol))
                result = Regrade(
                    at=time.time(),
                    run_id=run.run_id,
                    protocol=config.protocol,
                    before=run.official,
                    after=after,
                    changes=changes,
                )
                path = save(record, result)
                moved |= any(change.startswith(("verdict", "eager", "device speed-up")) for change in changes)
                if json:
                    typer.echo(json_module.dumps({"path": str(path), **json_module.loads(result.model_dump_json())}))
                else:
                    said = "; ".join(changes) or "as before"
                    typer.echo(f"{run.run_id}: {after.verdict}; {one_line(said, 400)}")
    raise typer.Exit(int(moved))


def _records(targets: list[str], runs_dir: Path) -> Iterator[Record]:
    for target in targets:
        path = find_runs(target, runs_dir)
        if (sweep := SweepRecord(path)).exists():
            if not (results := sweep.results()):
                raise UsageError(f"sweep {sweep.name} has no finished runs")
            yield from results.values()
        else:
            yield from records(path)


def _place(config: RunConfig) -> tuple[str, PlatformName, int, IsolationLevel]:
    """Where a sandbox is, and what for."""
    return config.sandbox, config.platform, config.world_size, config.isolation


def _same(earlier: Regrade, request: Request) -> bool:
    """Whether that was this very evaluation, by this version of the harness."""
    from harness.machine import harness_version

    after = earlier.after
    return (
        after.candidate == request.candidate.hash
        and earlier.protocol == request.protocol
        and after.environment.platform == request.platform
        and after.environment.harness == harness_version()
        and all(getattr(after, n) == getattr(request, n) for n in ("case", "world_size", "dtype", "trials"))
        and (after.check == request.check or find(request.problem, request.suite).tolerance == "flat")
    )
