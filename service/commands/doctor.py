"""`ringsmith doctor`: what is here, what is missing, what to do about it."""

from __future__ import annotations

import typer

from service.doctor import diagnose
from service.options import Json
from service.text import columns


def doctor(json: Json = False) -> None:
    """Say what this machine can do and what is missing. Exit code 3 if no platform is usable."""
    from harness.machine import machine

    diagnosis = diagnose(machine())
    if json:
        typer.echo(diagnosis.model_dump_json())
    else:
        rows = [
            (finding.mark, finding.what, finding.detail + (f" -> {finding.remedy}" if finding.remedy else ""))
            for finding in diagnosis.findings
        ]
        typer.echo(columns(rows))
    raise typer.Exit(0 if any(diagnosis.usable.values()) else 3)
