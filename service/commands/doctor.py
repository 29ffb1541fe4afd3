"""`ringsmith doctor`: what is here, what is missing, what to do about it; with `--calibrate`, how fast it is."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.errors import UsageError
from harness.types import PlatformName
from service.options import Json, Platform, WorldSize, resolve
from service.text import columns


def doctor(
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Instead, measure this machine's peaks (links, memory, matrix products) and store them: later "
            "measurements are compared with them.",
        ),
    ] = False,
    lift_quarantine: Annotated[
        bool,
        typer.Option(
            "--lift-quarantine", help="Instead, let devices be used again that were found not to work and set aside."
        ),
    ] = False,
    platform: Platform = None,
    world_size: WorldSize = None,
    json: Json = False,
) -> None:
    """Say what this machine can do and what is missing. Exit code 3 if no platform is usable.

    --platform and --world-size go with --calibrate."""
    if calibrate:
        setup = resolve(platform, world_size, None, None)
        _calibrate(setup.platform, setup.world_size, json)
    elif lift_quarantine:
        _lift(json)
    elif platform is not None or world_size is not None:
        raise UsageError("--platform and --world-size go with --calibrate")
    else:
        _diagnose(json)


def _lift(json: bool) -> None:
    from harness import lease

    lifted = lease.lift()
    for entry in lifted:
        typer.echo(
            entry.model_dump_json() if json else f"{entry.kind} {entry.device} may be used again: {entry.reason}"
        )
    if not lifted and not json:
        typer.echo("no device is in quarantine")


def _diagnose(json: bool) -> None:
    from harness import calibration, platforms
    from harness.machine import machine
    from service.doctor import diagnose

    here = machine()
    names: tuple[PlatformName, ...] = ("cpu", "cuda") if here.gpus.gpus else ("cpu",)
    diagnosis = diagnose(here, {name: calibration.load(name, platforms.get(name).device_names()) for name in names})
    if json:
        typer.echo(diagnosis.model_dump_json())
    else:
        rows = [
            (finding.mark, finding.what, finding.detail + (f" -> {finding.remedy}" if finding.remedy else ""))
            for finding in diagnosis.findings
        ]
        typer.echo(columns(rows))
    raise typer.Exit(0 if any(diagnosis.usable.values()) else 3)


def _calibrate(platform: PlatformName, world_size: int, json: bool) -> None:
    from harness import calibration
    from harness.evaluate import Sandbox
    from service.calibration import report

    with Sandbox(platform, world_size) as sandbox:
        measured = sandbox.calibrate()
    path = calibration.save(measured)
    typer.echo(measured.model_dump_json() if json else report(measured, path))
