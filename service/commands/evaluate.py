"""`ringsmith eval`: evaluate candidates; no model, no record. Graders and scripts rely on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.errors import UsageError
from harness.types import Limits, Request
from problems.catalogue import find, select_case
from service.candidates import read_candidate
from service.options import (
    AcceptSuites,
    BackendName,
    CaseName,
    CheckName,
    Collectives,
    DTypeName,
    Isolation,
    Json,
    Platform,
    ProtocolName,
    SandboxAddress,
    SandboxCa,
    SandboxToken,
    Suite,
    Trials,
    WorldSize,
    finite,
    given,
    place,
    resolve,
)
from service.progress import stages, stderr_console
from service.render import evaluation_block


def evaluate(
    context: typer.Context,
    files: Annotated[
        list[str] | None, typer.Argument(help="Candidates; - is stdin, `reference` the problem's own reference.")
    ] = None,
    problem: Annotated[str | None, typer.Option(help="Number or name.")] = None,
    suite: Suite = "",
    case: CaseName = None,
    platform: Platform = None,
    world_size: WorldSize = None,
    dtype: DTypeName = None,
    backend: BackendName = None,
    protocol: ProtocolName = "ringsmith",
    check: CheckName = "oracle",
    trials: Trials = 3,
    soak: Annotated[
        int, typer.Option(min=1, max=1000, help="How often correctness and stress are gone through: finds rare races.")
    ] = 1,
    timing: Annotated[
        bool, typer.Option("--timing/--no-timing", help="Whether to time a candidate that is right.")
    ] = True,
    call_deadline: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            callback=finite,
            metavar="SECONDS",
            help="Longest that a call, the first included, may make no progress. Default: 10.",
        ),
    ] = None,
    isolation: Isolation = "auto",
    collectives: Collectives = "allow",
    sandbox: SandboxAddress = "",
    sandbox_ca: SandboxCa = None,
    sandbox_token_file: SandboxToken = None,
    batch: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Instead, do what the manifests in this folder ask for and have no results for yet (docs/remote.md).",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="With --batch: go on looking for more, until Ctrl-C.")
    ] = False,
    accept_suites: AcceptSuites = False,
    json: Json = False,
) -> None:
    """Evaluate candidates, in the order given; each result is printed as soon as it is known.

    With --json one Evaluation per line. Exit code 0: all passed; 1: some candidate failed; 2: usage; 3: the harness
    failed, and later files were not tried.
    """
    if batch is not None:
        if others := given(context) - {"batch", "follow", "accept_suites", "isolation", "json"}:
            raise UsageError(f"with --batch the manifest says the rest: leave out {', '.join(sorted(others))}")
        from service.batch import run_batch

        raise typer.Exit(run_batch(batch, isolation, accept_suites=accept_suites, follow=follow, json=json))
    if follow or accept_suites:
        raise UsageError("--follow and --accept-suites go with --batch")
    if not files or problem is None:
        raise UsageError("say which candidates and which --problem, or --batch FOLDER")
    if files.count("-") > 1:
        raise UsageError("stdin (`-`) can be read once only")
    entry = find(problem, suite)
    case = select_case(entry, case or entry.default).name
    where = place(sandbox, sandbox_ca, sandbox_token_file)
    setup = resolve(platform, world_size, dtype, backend, where)
    limits = Limits() if call_deadline is None else Limits(call_s=call_deadline, first_call_s=call_deadline)
    failed, console = False, stderr_console()

    from harness.sandboxes import open_sandbox

    candidates = [(file, read_candidate(file, setup.backend, entry)) for file in files]
    with open_sandbox(where.address, setup.platform, setup.world_size, limits, isolation, where.access) as box:
        box.build_ahead([candidate for _, candidate in candidates])
        for number, (file, candidate) in enumerate(candidates, start=1):
            request = Request(
                candidate=candidate,
                problem=entry.number,
                suite=entry.suite,
                case=case,
                platform=setup.platform,
                world_size=setup.world_size,
                dtype=setup.dtype,
                protocol=protocol,
                check=check,
                trials=trials,
                soak=soak,
                timing=timing,
                collectives=collectives,
                limits=limits,
            )
            with stages(file, console) as on_stage:
                result = box.evaluate(request, on_stage, last=number == len(candidates))
            failed |= not result.passed
            typer.echo(result.model_dump_json() if json else evaluation_block(file, result))
    raise typer.Exit(int(failed))
