"""Typed results as short text for a model: what happened, and what the next edit should consider."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from harness import compiler_log
from harness.causes import EXPLAINED
from harness.code_text import source_lines
from harness.types import (
    BuildReport,
    Evaluation,
    Finding,
    Latency,
    Measurement,
    Mismatch,
    Protocol,
    RankReport,
    Timing,
    Verdict,
)
from harness.wording import figure, graphs_text, interval, plain, time_text

_MAX_LOG_LINES = 24
_MAX_FINDINGS = 3
_MAX_FURTHER = 3
_MAX_STACK = 8
_MAX_LINES = 60
"""A screen."""
_NOISE = re.compile(r"The hostname of the client socket cannot be retrieved")
"""What torch prints in every jail."""
_FOLDERS = re.compile(r"""(?<![\w./:~-])/(?:[^\s/:"'()<>,]+/)+(?=[^\s/])""")


def tidy(line: str) -> str:
    """A line that came from a rank: absolute paths without their folders (nobody who reads this can use them), cut."""
    return _FOLDERS.sub("", plain(line).replace("\n", " "))[:400]


def quoted(line: str) -> str:
    """One that stands by itself: set in, as nothing is that we say ourselves. A candidate could print a verdict."""
    return f"    {tidy(line)}"


def evaluation_text(evaluation: Evaluation, source: str = "", before: int | None = None) -> str:
    """A few lines on an evaluation: verdict, timings, floor; or the reason of the failure. `source` is the candidate,
    `before` the number of an earlier attempt that failed of the same error."""
    where = f"case {evaluation.case}, {evaluation.dtype}, {evaluation.world_size} ranks"
    if not evaluation.passed:
        head = f"{evaluation.verdict.upper()} at stage {evaluation.stage} ({where})"
        summary = [] if _said_by_findings(evaluation) else [tidy(evaluation.summary)]
        lines = [": ".join([head, *summary]), *finding_lines(evaluation.findings, source, before)]
        return "\n".join([*lines, _NEXT[evaluation.verdict]])
    lines = [f"PASSED ({where}): correct in {evaluation.trials} trials on all ranks."]
    if evaluation.measurement is not None:
        lines += measurement_lines(evaluation.measurement)
    else:
        lines.append("Not timed.")
    if evaluation.mechanisms:
        lines.insert(1, f"moved by: {', '.join(evaluation.mechanisms)}")
    return "\n".join(lines)


def build_text(head: str, report: BuildReport, source: str, before: int | None = None) -> str:
    """Why a candidate did not build: the cause, its line, and the errors after the first."""
    if not report.findings:
        return "\n".join([f"{head}: {tidy(report.summary)}", *log_lines(report.log, source)])
    lines = [head, *finding_lines(report.findings, source, before)]
    return "\n".join(lines if before else [*lines, *further_lines(report.log)])


def finding_lines(findings: Sequence[Finding], source: str, before: int | None = None) -> list[str]:
    """Each finding with its evidence and the candidate's line. What an earlier attempt was told already, `before`, is
    said in one line."""
    lines = []
    for finding in findings[:_MAX_FINDINGS]:
        inferred = "" if finding.certain else " (inferred)"
        said = f"{finding.cause}: {tidy(finding.text)}{inferred}"
        if before:
            lines.append(f"the same error as in attempt {before}: {said}")
            continue
        lines.append(said)
        if finding.evidence:
            lines.append(quoted(finding.evidence))
        if (line := _line(finding)) is not None:
            lines += context(source, line)
    return lines


def _line(finding: Finding) -> int | None:
    """Line of the candidate that a finding is about."""
    match = re.search(r"\bline (\d{1,7})", finding.text) or re.search(r"candidate\.py[:(](\d{1,7})", finding.evidence)
    return int(match[1]) if match else None


def further_lines(log: str) -> list[str]:
    """The errors of a compiler's output after the first, in a line each; or a stack."""
    errors = compiler_log.errors(log)
    if not errors:
        frames = [line for line in log.splitlines() if line.strip()]
        own = next((i for i, frame in enumerate(frames) if frame.startswith(compiler_log.CANDIDATE)), len(frames))
        # A single frame is the line that was shown already.
        return [quoted(frame) for frame in frames[own:][-_MAX_STACK:]] if len(frames) - own > 1 else []
    shown = [f"then {tidy(error.shown)}" for error in errors[1 : _MAX_FURTHER + 1]]
    more = len(errors) - 1 - len(shown)
    return [*shown, f"... and {more} more errors"] if more else shown


def _said_by_findings(evaluation: Evaluation) -> bool:
    """Whether the evidence of its findings is the error that its summary is made of."""
    return bool(evaluation.findings) and evaluation.verdict in EXPLAINED


_NEXT = {
    Verdict.passed: "",
    Verdict.compile_error: "Fix the source; `compile` shows the errors without using a device.",
    Verdict.api_error: "The name, argument or call does not exist; `inspect_failure` shows the stack.",
    Verdict.shape_error: "Return what the reference returns: same structure, shapes, dtypes and device on every rank.",
    Verdict.runtime_error: "`inspect_failure` shows each rank's stack and what it printed.",
    Verdict.out_of_memory: "Allocate less, or once and not per call.",
    Verdict.wrong_values: "`inspect_failure` shows where and how the values differ, per rank.",
    Verdict.race: "Single calls were right and calls in a row are not: look at what a fast rank may overwrite before a "
    "slow one has read it, at counters or flags that are not reset, and at work on other streams that is not joined.",
    Verdict.deadlock: "`inspect_failure` shows what each rank was waiting in.",
    Verdict.timeout: "`inspect_failure` shows where each rank was.",
    Verdict.integrity: "Do the work in every call, on that call's inputs, and finish it on the current stream; leave "
    "inputs, clocks, torch and the harness as they are.",
    Verdict.policy: "Use another mechanism; this one must not run here.",
}


def measurement_lines(measurement: Measurement) -> list[str]:
    lines = [_timing_line("eager ", measurement.eager, measurement.protocol)]
    if measurement.device is not None:
        lines.append(_timing_line("device", measurement.device, measurement.protocol))
    elif measurement.device_note:
        lines.append(f"device  not measured: {measurement.device_note}")
    lines += _host_line(measurement.eager)
    lines += _notes(measurement)
    if measurement.sol_us and measurement.sol_fraction:
        lines.append(_floor_line(measurement))
    return lines


def _host_line(eager: Timing) -> list[str]:
    """What launching costs: the eager figure leaves it out, the host being ahead of the device."""
    host, reference = eager.candidate.host_us, eager.reference.host_us
    if host is None or reference is None:
        return []
    bound = "; longer than the device needs: a plain Python loop of calls is bound by launching them"
    return [
        f"host    {host:.1f} us to issue a call from Python (reference {reference:.1f} us), not in the figures above"
        + (bound if host > eager.candidate.median_us else "")
    ]


def _notes(measured: Measurement) -> list[str]:
    """What the figures should be read with."""
    slowed = [t.reference_slowed for t in (measured.eager, measured.device) if t is not None and t.reference_slowed]
    notes = (
        [f"the reference was {max(slowed):.2f}x slower beside your ranks; its time without them counts"]
        if slowed
        else []
    )
    return [f"note    {note}" for note in (*notes, graphs_text(measured)) if note]


def _floor_line(measured: Measurement) -> str:
    """`floor   4.7 us (link in, datasheet), 5.9 us at rates measured on this machine (link in): 25% / 31% reached`"""
    line = f"floor   {measured.sol_us:.1f} us ({measured.bound_by}, {measured.sol_from})"
    if measured.achievable_us is None:
        return f"{line}: {measured.sol_fraction:.0%} reached"
    return (
        f"{line}, {measured.achievable_us:.1f} us at rates measured on this machine ({measured.achievable_bound_by}): "
        f"{measured.sol_fraction:.0%} / {measured.achievable_fraction:.0%} reached"
    )


def _timing_line(name: str, timing: Timing, protocol: Protocol) -> str:
    between = interval(timing.speedup, 3)
    return (
        f"{name}  {_latency(timing.candidate, protocol)}; reference {_latency(timing.reference, protocol)}; "
        f"speed-up {figure(timing.speedup.value, 3)}x" + (f", 95% interval {between}" if between else "")
    )


def _latency(latency: Latency, protocol: Protocol) -> str:
    spread = f"p10 {latency.p10_us:.1f}, p90 {latency.p90_us:.1f}, skew {latency.skew_us:.1f}"
    return f"{time_text(latency.median_us, protocol)} ({spread})"


def failure_text(evaluation: Evaluation, source: str, before: int | None = None) -> str:
    """All that is known about a failed evaluation, at most a screen. `before`: the number of an earlier attempt that
    failed of the same error."""
    findings = evaluation.findings
    lines = [
        f"{evaluation.verdict} at stage {evaluation.stage}, case {evaluation.case} "
        f"({', '.join(f'{k}={v}' for k, v in evaluation.sizes.items())}), {evaluation.dtype}",
        *([] if _said_by_findings(evaluation) else [tidy(evaluation.summary)]),
        *finding_lines(findings, source, before),
    ]
    if evaluation.log and not findings:
        lines += ["", *log_lines(evaluation.log, source)]
    elif evaluation.log and not before:
        lines += further_lines(evaluation.log)
    tail: list[str] = []
    if evaluation.verdict is Verdict.deadlock and not evaluation.findings:
        tail = [
            "",
            "Not determined: which signal is missing. A rank that finished or failed earlier is the first suspect.",
        ]
    # Every rank gets its first line; the details of as many follow as fit, in order of rank.
    room = _MAX_LINES - len(lines) - len(tail) - len(evaluation.ranks)
    shown: dict[tuple[str, ...], int] = {}
    for report in evaluation.ranks:
        first, *details = _rank_lines(report, source, {_line(finding) for finding in findings})
        if before and evaluation.verdict in EXPLAINED:
            details = []
        elif findings and not report.ok:
            alike = shown.setdefault((report.message, report.exit, *details), report.rank)
            if alike != report.rank:
                first, details = f"rank {report.rank}: as rank {alike} (calls completed: {report.calls_completed})", []
        if len(details) >= room:
            details = [*details[: room - 2], "  ..."] if room > 6 else []
        lines += ["", first, *details] if details else [first]
        room -= len(details) + bool(details)
    return "\n".join(lines[: _MAX_LINES - len(tail)] + tail)


def _rank_lines(report: RankReport, source: str, known: Collection[int | None]) -> list[str]:
    """`known`: lines of the candidate that need not be shown again."""
    state = "ok" if report.ok else tidy(report.message) or "failed"
    ended = f"; process ended: {report.exit}" if report.exit else ""
    lines = [f"rank {report.rank}: {state} (calls completed: {report.calls_completed}){ended}"]
    for mismatch in report.mismatches:
        lines += _mismatch_lines(mismatch)
    if report.stack and not report.ok:
        lines += [quoted(line) for line in report.stack.splitlines()[-8:]]
    if report.line is not None and report.line not in known:
        lines += context(source, report.line)
    printed = [line for line in report.stderr.strip().splitlines() if not _NOISE.search(line)]
    if printed and not report.ok:
        lines += ["  printed:"] + [quoted(line)[:200] for line in printed[-6:]]
    return lines


def _mismatch_lines(mismatch: Mismatch) -> list[str]:
    lines = [
        f"  {mismatch.output} {list(mismatch.shape)}, trial {mismatch.trial + 1}: {mismatch.wrong} of {mismatch.total} "
        f"elements wrong; largest error {mismatch.max_error:.4g} (allowed {mismatch.max_allowed:.2g}), "
        f"RMS {mismatch.rms_error:.4g} (allowed {mismatch.rms_allowed:.2g})"
    ]
    if mismatch.rows_wrong:
        lines.append(f"  {mismatch.rows_wrong} rows are too inaccurate for their scale; the figures are the worst's")
    if mismatch.nonfinite:
        lines.append(f"  {mismatch.nonfinite} elements are NaN or infinite")
    if mismatch.chunks_wrong and mismatch.wrong:
        parts = ", ".join(f"{i}: {fraction:.0%}" for i, fraction in enumerate(mismatch.chunks_wrong))
        lines.append(f"  wrong per chunk of the first axis (as many chunks as ranks): {parts}")
    for difference in mismatch.first:
        index = ", ".join(map(str, difference.index))
        lines.append(f"    [{index}] is {difference.got:.6g}, should be {difference.expected:.6g}")
    if mismatch.first and all(d.got == 0 for d in mismatch.first):
        lines.append("  the wrong values shown are all 0: never written, or written elsewhere")
    return lines


def log_lines(log: str, source: str) -> list[str]:
    """The first errors of a compiler's output, each with its line of the candidate."""
    lines = [line.rstrip() for line in log.splitlines() if line.strip()]
    errors = [i for i, line in enumerate(lines) if re.search(r"\berror\b", line, re.I)]
    shown: list[str] = []
    for i in errors[:3]:
        shown.append(quoted(lines[i]))
        if match := re.search(r"candidate\.py[:(](\d+)", lines[i]):
            shown += context(source, int(match[1]))
    if not errors:
        shown = [quoted(line) for line in lines[:_MAX_LOG_LINES]]
    elif len(errors) > 3:
        shown.append(f"... and {len(errors) - 3} more errors")
    return shown[:_MAX_LOG_LINES]


def context(source: str, line: int, around: int = 2) -> list[str]:
    """Lines of the candidate around `line`, that one marked."""
    lines = source_lines(source)
    first, last = max(1, line - around), min(len(lines), line + around)
    return [f"  {'>' if n == line else ' '} {n:4d} | {plain(lines[n - 1])[:200]}" for n in range(first, last + 1)]
