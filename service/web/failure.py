"""Why a candidate failed: findings, what each rank says, and a map of wrong elements."""

from __future__ import annotations

from nicegui import ui

from harness.types import BuildReport, Evaluation
from runs.revisions import alike
from service.web.site import heading, pre


def show_failure(failed: Evaluation | BuildReport) -> None:
    """Why it failed: findings, what each rank says, which parts of the output are wrong."""
    heading("Failure")
    ui.label(failed.summary)
    for finding in failed.findings:
        with ui.element("div"):
            ui.label(f"{finding.cause}: {finding.text}{'' if finding.certain else ' (inferred)'}")
            if finding.evidence:
                ui.label(finding.evidence).classes("faint")
    if isinstance(failed, Evaluation):
        _ranks(failed)
    if failed.log:
        with ui.expansion("Log").props("dense").classes("w-full"):
            pre(failed.log[-20_000:])


def _ranks(evaluation: Evaluation) -> None:
    for names, report in alike(evaluation.ranks):
        if report.ok:
            continue
        line = f", line {report.line}" if report.line is not None else ""
        ended = f", {report.exit}" if report.exit else ""
        ui.label(f"{names}: {report.message or 'stopped'} (at {report.stage}{line}{ended})")
        for title, text in (("Stack", report.stack), ("Printed", report.stderr)):
            if text:
                with ui.expansion(f"{title} of {names}").props("dense").classes("w-full"):
                    pre(text[-20_000:])
    wrong = [(report.rank, mismatch) for report in evaluation.ranks for mismatch in report.mismatches]
    if not wrong:
        return
    heading("Wrong elements by rank and equal part of the output along its first axis", 3)
    with ui.element("table").classes("map"), ui.element("tbody"):
        for rank, mismatch in wrong:
            with ui.element("tr"):
                with ui.element("th").props('scope="row"'):
                    ui.label(f"rank {rank}, {mismatch.output}, trial {mismatch.trial}")
                with ui.element("td"):
                    ui.label(f"{mismatch.wrong:,} of {mismatch.total:,}, largest error {mismatch.max_error:.3g}")
                for share in mismatch.chunks_wrong:
                    with ui.element("td").classes("part").style(f"--share: {share:.2f}"):
                        ui.label(f"{share:.0%}")
