"""The long tables of a report: problem by problem, run by run."""

from __future__ import annotations

from collections.abc import Callable

from harness.types import Ratio
from runs.metrics import spent_until
from runs.report.study import Study
from runs.report.table import Column, Table, Value
from runs.rows import Row


def problems(study: Study) -> Table:
    columns = [Column("problem"), Column("name"), Column("case"), Column("family")]
    for group in study.groups:
        columns += [Column(f"{group.label}: correct"), Column(f"{group.label}: speed-up", ".2f")]
    table = Table(
        "problems",
        "By problem",
        "Correct of samples, and the best official speed-up of a correct one.",
        tuple(columns),
    )
    for key in study.problems:
        name, family = study.names[key]
        cells: list[Value] = [key.problem, name, key.case, family]
        for group in study.groups:
            of = [row for row in group.samples if row.problem == key]
            ratios = [ratio for row in of if (ratio := row.ratio(study.fast.figure))]
            cells += [f"{sum(row.correct for row in of)} of {len(of)}", max(ratios, key=_low, default=None)]
        table.rows.append(tuple(cells))
    return table


def runs(study: Study) -> Table:
    fast = study.fast_name
    plain: list[tuple[Column, Callable[[Row], Value]]] = [
        (Column("problem"), lambda row: row.config.problem),
        (Column("name"), lambda row: row.name),
        (Column("case"), lambda row: row.config.case),
        (Column("family"), lambda row: row.family),
        (Column("configuration"), study.label_of),
        (Column("sample"), lambda row: row.sample),
        (Column("verdict"), lambda row: row.verdict or "no candidate"),
        (Column("mode"), lambda row: row.mode or "correct"),
        (Column("eager", ".2f"), lambda row: row.ratio("eager")),
        (Column("device", ".2f"), lambda row: row.ratio("device")),
        (Column("candidate us", ".1f"), lambda row: row.candidate_us),
        (Column("floor us", ".1f"), lambda row: row.sol_us),
        (Column("of roofline", ".1%"), lambda row: row.sol_fraction if row.correct else None),
        (Column("bound by"), lambda row: row.bound_by),
        (Column("moved by"), lambda row: ", ".join(row.mechanisms)),
        (Column("NCCL"), lambda row: "yes" if row.uses_nccl else ""),
        (Column("steps"), lambda row: row.spend.steps),
        (Column("attempts"), lambda row: row.attempts),
        (Column("tokens"), lambda row: row.spend.tokens),
        (Column("USD", ".3f"), lambda row: row.spend.usd if row.spend.usd_known else f"> {row.spend.usd:.3f}"),
        (Column("GPU-s", ".0f"), lambda row: row.spend.device_s),
        (Column("correct at step", ".0f"), lambda row: spent_until(row, "step")),
        (Column("correct at USD", ".3f"), lambda row: spent_until(row, "usd")),
        (Column(f"{fast} at step", ".0f"), lambda row: spent_until(row, "step", study.fast)),
        (Column(f"{fast} at USD", ".3f"), lambda row: spent_until(row, "usd", study.fast)),
        (Column("end"), lambda row: row.reason),
        (Column("prompts"), lambda row: row.prompts_hash),
        (Column("Ringsmith"), lambda row: row.harness),
        (Column("run"), lambda row: row.run_id),
    ]
    samples = sorted(
        (row for row in study.rows if row.outcome == "sample"),
        key=lambda row: (row.config.problem, row.config.case, study.label_of(row), row.sample or 0),
    )
    return Table(
        "runs",
        "Runs",
        "Official evaluations. A run without one counts by the last failure in it.",
        tuple(column for column, _ in plain),
        [tuple(of(row) for _, of in plain) for row in samples],
        tuple(study.anchor(row) for row in samples),
    )


def left_out(study: Study) -> Table:
    table = Table(
        "left_out",
        "Not counted",
        "Runs that say nothing about a model: ended by a fault of provider, machine or harness, interrupted, or still "
        "going on; and records that cannot be read.",
        (
            Column("run"),
            Column("configuration"),
            Column("problem"),
            Column("what"),
            Column("reason"),
            Column("USD", ".2f"),
        ),
    )
    for row in study.rows:
        if row.outcome != "sample":
            cells = (row.run_id, study.label_of(row), row.config.problem, row.outcome, row.reason, row.spend.usd)
            table.rows.append(cells)
    table.rows.extend(("", "", None, "unreadable", line, None) for line in study.unreadable)
    return table


def _low(ratio: Ratio) -> float:
    return ratio.low
