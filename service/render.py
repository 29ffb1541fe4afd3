"""Evaluations and runs as a person reads them."""

from __future__ import annotations

from pathlib import Path

from harness.jail import LAYERS
from harness.types import Evaluation, Finding, Mismatch, Protocol, RankReport, Timing
from harness.wording import graphs_text, one_line, ratio_text, time_text
from runs.attempts import Attempt
from runs.events import Spend
from runs.fold import Run
from runs.wording import charged, duration, speedups
from service.text import columns, indent

_LOG_LINES = 20
"""Lines of a failing candidate's compiler output that are shown; --json has all of it."""
_FINDINGS = 3
"""Findings that are shown, likewise."""


def spent(spend: Spend) -> str:
    """`7 steps, 41200 tokens, 0.31 USD, 12 min, 85 device-seconds`."""
    usd = f"{spend.usd:.2f} USD" if spend.usd_known else f"at least {spend.usd:.2f} USD (a price was unknown)"
    cached = f" ({spend.cached_tokens / spend.input_tokens:.0%} of the input cached)" if spend.cached_tokens else ""
    used = f"{spend.steps} steps, {spend.tokens} tokens{cached}, {usd}"
    return f"{used}, {duration(spend.wall_s)}, {spend.device_s:.0f} device-seconds"


def attempts_table(attempts: tuple[Attempt, ...], best: Attempt | None) -> str:
    """One line per attempt; the best is starred. Behind the figures stands what moves the data."""
    lanes = any(attempt.lane > 1 for attempt in attempts)
    rows = [("", *(["LANE"] if lanes else []), "STEP", "TOOL", "CANDIDATE", "VERDICT", "RESULT")]
    for attempt in attempts:
        figures = speedups(attempt.measurement)
        by = f"  {', '.join(attempt.mechanisms)}" if figures else ""
        rows.append(
            (
                "*" if attempt == best else "",
                *([str(attempt.lane)] if lanes else []),
                str(attempt.step),
                attempt.tool,
                attempt.candidate,
                attempt.verdict or "-",
                f"{figures}{by}".rstrip() or one_line(attempt.summary, 90),
            )
        )
    return columns(rows)


def run_summary(run: Run, path: Path) -> str:
    """How a run ended: the official verdict, its figures, the best candidate, what was spent, where the record is."""
    outcome = "target met" if run.target_met else "target not met"
    lines = [f"run {run.run_id}: {run.status}, {one_line(run.reason or 'no end recorded', 300)}; {outcome}"]
    if run.helped:
        lines.append("a person gave a hint or a candidate: not the model's work alone")
    if run.official is not None:
        lines.append(evaluation_block(f"official evaluation of {run.official.candidate}", run.official))
    else:
        lines.append("no official evaluation")
    if run.best is not None:
        file = path / "candidates" / f"{run.best.candidate}.py"
        lines.append(f"best: {file} ({speedups(run.best.measurement) or 'correct, not timed'})")
    if run.lanes > 1:
        lines.append(
            f"strategy {one_line(run.config.strategy)}: {run.lanes} lanes, together one attempt with this budget; "
            "fast_p@k is of k runs, not of lanes"
        )
    lines.append(f"spent: {spent(run.spend)}")
    if run.spend.tokens:
        lines += [f"{'then ' if i else ''}priced by {charged(prices)}" for i, prices in enumerate(run.prices)]
    lines.append(f"record: {path}")
    return "\n".join(lines)


def evaluation_block(label: str, evaluation: Evaluation) -> str:
    """A verdict, its reason and its figures; a few lines."""
    where = (
        f"{evaluation.problem} {evaluation.name}, case {evaluation.case}, {evaluation.world_size} ranks, "
        f"{evaluation.dtype}, {evaluation.backend}, check {evaluation.check}"
    )
    lines = [f"{one_line(label)}: {evaluation.verdict.upper()}  ({where})"]
    if evaluation.passed:
        lines += _figures(evaluation)
        if evaluation.mechanisms:
            lines.append(f"    moved by: {', '.join(evaluation.mechanisms)}")
    else:
        lines.append(f"    at {evaluation.stage}: {one_line(evaluation.summary, 400)}")
        lines += [indent(one_line(_finding(finding), 400)) for finding in evaluation.findings[:_FINDINGS]]
        lines += _rank_lines(evaluation.ranks)
        if log := evaluation.log.rstrip().splitlines()[-_LOG_LINES:]:
            lines.append(indent("\n".join(log), "    | "))
    on = evaluation.environment.isolation
    layers = "all layers" if set(LAYERS) <= set(on) else ", ".join(on) or "none"
    seconds = sum(evaluation.stage_s.values())
    waited = f" ({evaluation.waited_s:.1f} s of them waiting for devices)" if evaluation.waited_s >= 0.1 else ""
    lines.append(f"    took {seconds:.1f} s{waited}, {evaluation.device_s:.1f} device-seconds; isolation: {layers}")
    if evaluation.fault:
        lines.append(
            f"    a second attempt; the first ended by no fault of the candidate's: {one_line(evaluation.fault, 400)}"
        )
    return "\n".join(lines)


def _finding(finding: Finding) -> str:
    return f"{finding.cause}: {finding.text}{'' if finding.certain else ' (inferred)'}"


def _figures(evaluation: Evaluation) -> list[str]:
    measured = evaluation.measurement
    if measured is None:
        return ["    correct; not timed"]
    rows = [_timing_row("eager", measured.eager, measured.protocol)]
    if measured.device:
        rows.append(_timing_row("device", measured.device, measured.protocol))
    lines = indent(columns(rows)).splitlines()
    if evaluation.uses_nccl:
        lines.append("    calls torch.distributed's collectives or NCCL itself")
    if slowed := max((t.reference_slowed or 0.0 for t in filter(None, (measured.eager, measured.device))), default=0.0):
        lines.append(f"    the reference was {slowed:.2f}x slower beside the candidate; its time without it counts")
    if remark := graphs_text(measured):
        lines.append(f"    device: {remark}")
    if measured.device_note:
        lines.append(f"    no device figure: {one_line(measured.device_note)}")
    if measured.sol_us is not None and measured.sol_fraction is not None:
        floor = f"{measured.sol_us:.2f} us, bound by {measured.bound_by}"
        lines.append(f"    floor {floor}: {measured.sol_fraction:.0%} of it reached")
    if measured.achievable_us is not None:
        achievable = f"{measured.achievable_us:.2f} us, bound by {measured.achievable_bound_by}"
        lines.append(f"    at rates measured on this machine {achievable}: {measured.achievable_fraction:.0%} reached")
    return lines


def _timing_row(name: str, timing: Timing, protocol: Protocol) -> tuple[str, ...]:
    candidate, reference = timing.candidate, timing.reference
    spread = f"p10 {candidate.p10_us:.1f}, p90 {candidate.p90_us:.1f}, rank skew {candidate.skew_us:.1f}"
    host = f", host {candidate.host_us:.1f} us" if candidate.host_us is not None else ""
    return (
        name,
        ratio_text(timing.speedup),
        f"{time_text(candidate.median_us, protocol)} ({spread}{host})",
        f"reference {time_text(reference.median_us, protocol)}",
    )


def _rank_lines(ranks: tuple[RankReport, ...]) -> list[str]:
    """One line per distinct failure, naming the ranks that share it."""
    alike: dict[str, list[int]] = {}
    for report in ranks:
        if not report.ok:
            alike.setdefault(_failure(report), []).append(report.rank)
    return [f"    rank {','.join(map(str, who))}: {what}" for what, who in alike.items()]


def _failure(report: RankReport) -> str:
    at = f" (line {report.line})" if report.line is not None else ""
    ended = f" [{report.exit}]" if report.exit else ""
    what = one_line(report.message, 300) or f"stopped in {report.stage}"
    return "; ".join([f"{what}{at}{ended}", *(_mismatch(mismatch) for mismatch in report.mismatches[:2])])


def _mismatch(mismatch: Mismatch) -> str:
    first = "".join(
        f", first at {list(difference.index)}: {difference.got:.6g} for {difference.expected:.6g}"
        for difference in mismatch.first[:1]
    )
    return f"{mismatch.output}: {mismatch.wrong} of {mismatch.total} wrong (max error {mismatch.max_error:.3g}{first})"
