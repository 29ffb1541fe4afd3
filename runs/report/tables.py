"""The tables of a report: sums over configurations, families, mechanisms, pairs."""

from __future__ import annotations

from itertools import combinations
from typing import get_args

from harness.types import Mechanism
from runs.compare import compare
from runs.metrics import geomean_speedup, roofline_share, shares, success_at_k
from runs.published import SAMPLES, published
from runs.report.listings import left_out, problems, runs
from runs.report.study import Study
from runs.report.table import Column, Table, Value
from runs.rows import CORRECT, Mode, Row

MODES: tuple[Mode, ...] = get_args(Mode)


def tables(study: Study, *, empty: bool = False) -> list[Table]:
    """All that hold anything (`empty`: all that there are), the summary first and the runs last."""
    made = [summary(study), as_published(study), families(study), mechanisms(study)]
    if len(study.groups) > 1 or empty:
        made.append(head_to_head(study))
    made += [problems(study), runs(study)]
    if any(row.outcome != "sample" for row in study.rows) or study.unreadable or empty:
        made.append(left_out(study))
    return made


def summary(study: Study) -> Table:
    fast = study.fast_name
    columns = [
        Column("configuration"),
        Column("problems"),
        Column("samples"),
        Column("faults"),
        Column("unfinished"),
        Column("helped"),
    ]
    columns += [Column(f"{what}@{k}", ".1%") for what in ("pass", fast) for k in study.ks]
    columns += [
        Column("short"),
        Column("geomean speed-up", ".2f"),
        Column("over problems"),
        Column("of roofline", ".1%"),
    ]
    columns += [Column("steps", ".1f"), Column("tokens"), Column("USD", ".2f"), Column("GPU-h", ".2f")]
    table = Table(
        "summary",
        "Summary",
        f"Shares are of all problems ({len(study.problems)}), with 95% intervals over problems. Geometric mean of "
        "speed-ups and median share of the roofline are over correct runs only. `short` problems have fewer samples "
        f"than {study.ks[-1]}: figures that need more are lower bounds. Steps are a sample's mean; tokens, USD and GPU "
        "hours are sums, faults included.",
        tuple(columns),
    )
    for group in study.groups:
        at = [success_at_k(group.rows, study.problems, one, k) for one in (CORRECT, study.fast) for k in study.ks]
        speed, samples = geomean_speedup(group.rows, study.fast.figure), group.samples
        steps = sum(row.spend.steps for row in samples) / len(samples) if samples else None
        known = all(row.spend.usd_known for row in group.rows)
        usd = sum(row.spend.usd for row in group.rows)
        table.rows.append(
            (
                group.label,
                len({row.problem for row in samples}),
                len(samples),
                sum(row.outcome == "fault" for row in group.rows),
                sum(row.outcome == "unfinished" for row in group.rows),
                sum(row.outcome == "helped" for row in group.rows),
                *at,
                at[-1].short,
                speed.value,
                speed.problems,
                roofline_share(group.rows).value,
                steps,
                sum(row.spend.tokens for row in group.rows),
                usd if known else f"> {usd:.2f}",
                sum(row.spend.device_s for row in group.rows) / 3600,
            )
        )
    return table


def as_published(study: Study) -> Table:
    """Numbers of problems, ours and ParallelKernelBench's: each at the numbers of samples that there are of it."""
    theirs, fast, most = published(), study.fast_name, study.ks[-1]
    tries = sorted({1, most, SAMPLES})
    whose = ("model", "problems", *(f"{what}@{k}" for what in ("correct", fast) for k in tries))
    table = Table(
        "models",
        "In ParallelKernelBench's form",
        "Numbers of problems; ours are estimates from all samples, failure modes those of one. Published figures "
        f"({theirs.source}: bf16, 4 to 8 H100s, point estimates, @3) are what was measured there, on other machines.",
        tuple(Column(name, "" if name in ("model", "problems") else ".1f") for name in (*whose, *MODES)),
    )
    for group in study.groups:
        of = shares(group.rows, study.problems, lambda row: row.mode)
        at = [
            success_at_k(group.rows, study.problems, one, k).value * len(study.problems) if k <= most else None
            for one in (CORRECT, study.fast)
            for k in tries
        ]
        table.rows.append((group.label, len(study.problems), *at, *(of.get(mode, 0.0) for mode in MODES)))
    for model in (*theirs.models, *theirs.agentic):
        at_1_and_3 = [model.correct, model.fast1 if study.fast.p == 1 else ()]
        solved = [dict(zip((1, SAMPLES), known, strict=False)).get(k) for known in at_1_and_3 for k in tries]
        modes = [model.modes.get(mode) for mode in MODES]
        table.rows.append((f"{model.name} (published)", theirs.problems, *solved, *modes))
    return table


def families(study: Study) -> Table:
    theirs, fast = published(), study.fast_name
    whose = ("problems", *(f"{theirs.category_model} correct@{n}" for n in (1, 3)))
    columns = [Column("family"), Column("problems"), *(Column(f"{name} (published)") for name in whose)]
    for group in study.groups:
        columns += [Column(f"{group.label}: correct@{at}", ".1f") for at in study.ks]
        columns += [Column(f"{group.label}: {fast}@{at}", ".1f") for at in study.ks]
    table = Table(
        "families",
        "By family",
        "Numbers of problems solved, as ParallelKernelBench publishes them by category. Which problems theirs "
        "hold was not published, and the counts (86 in all) differ from ours in some.",
        tuple(columns),
    )
    for family in sorted({family for _, family in study.names.values()}):
        keys = [key for key in study.problems if study.names[key][1] == family]
        known = theirs.categories.get(family)
        cells: list[Value] = [family, len(keys), *([known.problems, *known.correct] if known else [None, None, None])]
        for group in study.groups:
            for one in (CORRECT, study.fast):
                cells += [success_at_k(group.rows, keys, one, at).value * len(keys) for at in study.ks]
        table.rows.append(tuple(cells))

    return table


def mechanisms(study: Study) -> Table:
    table = Table(
        "mechanisms",
        "By mechanism",
        "What moves data between ranks in correct candidates, as their text says; one may use several.",
        (
            Column("configuration"), Column("mechanism"), Column("correct runs"), Column(f"{study.fast_name} runs"),
            Column("problems"), Column("geomean speed-up", ".2f"), Column("of roofline", ".1%"),
        ),
    )  # fmt: skip
    for group in study.groups:
        right = [row for row in group.samples if row.correct]
        kinds: list[tuple[str, list[Row]]] = [
            (mechanism, [row for row in right if mechanism in row.mechanisms]) for mechanism in get_args(Mechanism)
        ]
        kinds += [
            ("not told", [row for row in right if not row.mechanisms]),
            ("calls NCCL or torch.distributed", [row for row in right if row.uses_nccl]),
        ]
        for name, of in kinds:
            if of:
                speed = geomean_speedup(of, study.fast.figure)
                table.rows.append(
                    (
                        group.label,
                        name,
                        len(of),
                        sum(study.fast.holds(row) for row in of),
                        speed.problems,
                        speed.value,
                        roofline_share(of).value,
                    )
                )
    return table


def head_to_head(study: Study) -> Table:
    table = Table(
        "head_to_head",
        "Head to head",
        "First minus second, on problems that both were run on. p: two-sided paired permutation test over problems; "
        "sign p: sign test on wins and losses. Speed-up ratio: geometric mean over problems that both solved. Of many "
        "pairs some p fall below 0.05 by chance.",
        (
            Column("first"), Column("second"), Column("what"), Column("problems"), Column("difference", "+.1%"),
            Column("p", ".4f"), Column("wins"), Column("losses"), Column("ties"), Column("sign p", ".4f"),
            Column("speed-up ratio", ".2f"),
        ),
    )  # fmt: skip
    for first, second in combinations(study.groups, 2):
        for what, success in (("correct", CORRECT), (study.fast_name, study.fast)):
            found = compare(first.rows, second.rows, study.problems, success)
            table.rows.append(
                (
                    first.label,
                    second.label,
                    f"{what}@1",
                    found.difference.problems,
                    found.difference,
                    found.p_value,
                    found.wins,
                    found.losses,
                    found.ties,
                    found.sign_p_value,
                    found.speedup_ratio,
                )
            )
    return table


def _padded(solved: tuple[int, ...]) -> list[int | None]:
    """At one and at three samples, as far as there is such a figure."""
    return [*solved, None, None][:2]
