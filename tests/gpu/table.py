"""`python -m tests.gpu.table FILE`: a Markdown table of evaluations, one JSON line each (docs/results.md)."""

import sys
from pathlib import Path

from harness.types import Evaluation, Timing


def row(evaluation: Evaluation) -> str:
    head = f"| {evaluation.problem} | {evaluation.log} | {evaluation.case} | {evaluation.verdict} "
    if evaluation.measurement is None:
        return f"{head}| | | | | {evaluation.summary[:110]} |"
    m = evaluation.measurement
    floor = f"{m.sol_us:.1f} ({m.bound_by})" if m.sol_us else ""
    fraction = f"{m.sol_fraction:.0%}" if m.sol_fraction else ""
    if m.achievable_us:  # at rates measured on that machine
        floor += f", {m.achievable_us:.1f} ({m.achievable_bound_by}) measured"
        fraction += f", {m.achievable_fraction:.0%}"
    return f"{head}| {times(m.eager)} | {times(m.device)} | {floor} | {fraction} | |"


def times(timing: Timing | None) -> str:
    if timing is None:
        return "not capturable"
    ratio = timing.speedup
    return (
        f"{timing.candidate.median_us:.1f} / {timing.reference.median_us:.1f}, "
        f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
    )


def main() -> None:
    lines = Path(sys.argv[1]).read_text().splitlines()
    print(
        "| problem | candidate | case | verdict | eager us: candidate / reference, speed-up | device us | floor us "
        "| reached | |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for line in lines:
        print(row(Evaluation.model_validate_json(line)))


if __name__ == "__main__":
    main()
