"""`ringsmith profile`: where a candidate's time goes; no model, no record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.types import Limits, Request
from problems.catalogue import find, select_case
from service.candidates import read_candidate
from service.options import (
    BackendName,
    CaseName,
    DTypeName,
    Isolation,
    Json,
    Platform,
    SandboxAddress,
    SandboxCa,
    SandboxToken,
    Suite,
    WorldSize,
    place,
    resolve,
)
from service.render import evaluation_block
from tools.profile_text import profile_text


def profile(
    file: Annotated[str, typer.Argument(help="Candidate; - is stdin, `reference` the problem's own reference.")],
    problem: Annotated[str, typer.Option(help="Number or name.")],
    suite: Suite = "",
    case: CaseName = None,
    platform: Platform = None,
    world_size: WorldSize = None,
    dtype: DTypeName = None,
    backend: BackendName = None,
    kernel: Annotated[
        str, typer.Option(metavar="NAME", help="Hardware counters of the kernel whose name has this, as well.")
    ] = "",
    traces: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where the trace of all ranks goes; Perfetto opens it.")
    ] = Path("traces"),
    isolation: Isolation = "auto",
    sandbox: SandboxAddress = "",
    sandbox_ca: SandboxCa = None,
    sandbox_token_file: SandboxToken = None,
    json: Json = False,
) -> None:
    """Profile a candidate: what binds it, bytes over links, overlap, waiting, kernels, hints for the next edit.

    The same text as the tool's (docs/profile.md). Exit code 1: the candidate did not get through a correctness trial.
    """
    entry = find(problem, suite)
    where = place(sandbox, sandbox_ca, sandbox_token_file)
    setup = resolve(platform, world_size, dtype, backend, where)

    from harness.evaluate import CandidateFailedError
    from harness.sandboxes import open_sandbox

    candidate = read_candidate(file, setup.backend, entry)
    with open_sandbox(where.address, setup.platform, setup.world_size, Limits(), isolation, where.access) as box:
        request = Request(
            candidate=candidate,
            problem=entry.number,
            suite=entry.suite,
            case=select_case(entry, case or entry.default).name,
            platform=setup.platform,
            world_size=setup.world_size,
            dtype=setup.dtype,
        )
        try:
            found, _ = box.profile(request, traces, kernel)
        except CandidateFailedError as failed:
            result = failed.evaluation
            typer.echo(result.model_dump_json() if json else evaluation_block(file, result))
            raise typer.Exit(1) from None
    typer.echo(found.model_dump_json() if json else f"{profile_text(found)}\ntrace: {found.trace}")
