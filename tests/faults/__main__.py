"""Every correct base and every planted fault through the harness (`python -m tests.faults`).

One line for each fault: its verdict, the findings, and whether one of them names what was planted. `--out` keeps
everything as JSON; `--table` of that file prints the table of docs/diagnosis.md. Ends with 1 if a base did not pass or
a fault got a verdict that it should not.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any, get_args

from harness.evaluate import Sandbox
from harness.types import DType, Evaluation, Limits, PlatformName, Request
from problems.spec import ProblemError
from tests.faults.fault import CORRECT, ROOT, Fault, problem_of, request
from tests.faults.faults import FAULTS
from tests.faults.held_out import HELD_OUT

SETS: dict[str, tuple[Fault, ...]] = {"first": FAULTS, "held-out": HELD_OUT, "all": FAULTS + HELD_OUT}
_FIRST_CALL_S = {"cpu": 0.0, "cuda": 10.0}


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    if options.table:
        print(table(json.loads(Path(options.table).read_text(encoding="utf-8"))))
        return 0
    first_s = max(options.deadline, _FIRST_CALL_S[options.platform])
    limits = Limits(load_s=10.0, first_call_s=first_s, call_s=options.deadline)
    faults = [f for f in SETS[options.set] if f.platform == options.platform and re.search(options.only, f.name)]
    rows: list[dict[str, Any]] = []
    for world_size in options.world_size:
        print(f"\n{options.platform}, {world_size} ranks", flush=True)
        with Sandbox(options.platform, world_size, limits) as box:
            if not options.no_bases:
                rows += [_base(box, *base, limits, options) for base in _bases(faults, options, world_size)]
            if not options.no_faults:
                rows += [_fault(box, f, world_size, limits) for f in faults if f.min_ranks <= world_size]
    if options.out:
        document = {"platform": options.platform, "world_sizes": options.world_size, "rows": rows}
        Path(options.out).write_text(json.dumps(document, indent=1), encoding="utf-8")
    planted = [row for row in rows if row["what"] == "fault"]
    wrong = [row for row in rows if not row["right"]]
    named = sum(row["named"] is not None for row in planted)
    problems = len({row["problem"] for row in planted})
    print(
        f"\n{len(rows) - len(planted)} bases, {len(planted)} faults in {problems} problems: {named} named; "
        f"{len(wrong)} verdicts not as expected"
    )
    for row in wrong:
        print(f"  {row['name']} W={row['world_size']}: {row['verdict']}: {row['summary'][:160]}")
    return int(bool(wrong))


def _bases(faults: list[Fault], options: argparse.Namespace, world_size: int) -> list[tuple[Path, str, DType]]:
    """Files, cases and dtypes: the chosen faults' as those use them, or with `--every-base` all of the folder."""
    if options.every_base:
        paths = sorted((ROOT / CORRECT).glob("*.py")) if options.platform == "cpu" else sorted({f.path for f in faults})
        paths = [path for path in paths if re.search(options.only, path.stem)]
        return [(path, case, dtype) for path in paths for case in options.case for dtype in options.dtype]
    return sorted({(f.path, f.case, f.dtype) for f in faults if f.min_ranks <= world_size})


def _base(
    box: Sandbox, path: Path, case: str, dtype: DType, limits: Limits, options: argparse.Namespace
) -> dict[str, Any]:
    asked = request(
        path.read_text(encoding="utf-8"), problem_of(path), options.platform, box.world_size, limits, case=case,
        dtype=dtype,
    )  # fmt: skip
    row = {"what": "base", "name": path.stem, "base": path.stem, "problem": problem_of(path)}
    row |= {"case": case, "dtype": dtype, "world_size": box.world_size} | _evaluated(box, asked)[1]
    row["right"] = row["verdict"] in ("passed", "skipped")
    print(f"{' ' if row['right'] else '!'} base {path.stem:36} {case:5} {dtype:9} {row['verdict']:14} "
          f"{row['seconds']:5.1f} s {'' if row['right'] else row['summary'][:300]}", flush=True)  # fmt: skip
    return row


def _fault(box: Sandbox, fault: Fault, world_size: int, limits: Limits) -> dict[str, Any]:
    evaluation, described = _evaluated(box, fault.request(world_size, limits))
    row = {
        "what": "fault", "set": set_of(fault), "name": fault.name, "base": fault.path.stem,
        "problem": fault.problem, "kind": fault.kind,
        "case": fault.case, "dtype": fault.dtype, "world_size": world_size,
        "planted": fault.said(fault.planted, world_size), "expected": [str(v) for v in fault.verdicts],
    } | described  # fmt: skip
    row["right"] = row["verdict"] in (*row["expected"], "skipped")
    row["named"] = fault.named(evaluation) if evaluation else None
    said = "; ".join(f["cause"] for f in row["findings"]) or "no finding"
    first = f" | {row['findings'][0]['text']}" if row["findings"] else ""
    named = f"yes ({row['named']})" if row["named"] else "no"
    print(f"{' ' if row['right'] else '!'} {fault.name:40} {row['verdict']:14} {row['stage']:11} named: {named:8} "
          f"{row['seconds']:5.1f} s {said}{first}", flush=True)  # fmt: skip
    if not row["right"]:
        print(f"    expected {'/'.join(row['expected'])}: {row['summary'][:300]}", flush=True)
    return row


def set_of(fault: Fault) -> str:
    return next(name for name, faults in SETS.items() if fault in faults)


def _evaluated(box: Sandbox, asked: Request) -> tuple[Evaluation | None, dict[str, Any]]:
    began = time.monotonic()
    row: dict[str, Any] = {"stage": "", "findings": []}
    try:
        evaluation = box.evaluate(asked)
    except ProblemError as error:  # the case does not fit this number of ranks
        return None, row | {"verdict": "skipped", "summary": str(error), "seconds": 0.0}
    return evaluation, row | {
        "verdict": str(evaluation.verdict),
        "stage": str(evaluation.stage),
        "summary": evaluation.summary,
        "findings": [finding.model_dump() for finding in evaluation.findings],
        "seconds": round(time.monotonic() - began, 2),
    }


def table(document: dict[str, Any]) -> str:
    """Markdown: one row for each fault."""
    rows = [row for row in document["rows"] if row["what"] == "fault"]
    lines = ["| fault | set | problem | ranks | verdict | finding | named |", "| --- " * 7 + "|"]
    for row in rows:
        shown = row["findings"][(row["named"] or 1) - 1] if row["findings"] else None
        finding = f"{shown['cause']}: {shown['text']}" if shown else "none"
        cells = (
            row["planted"], row["set"], row["problem"], row["world_size"], row["verdict"], finding,
            "yes" if row["named"] else "no",
        )  # fmt: skip
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    totals = []
    for name in SETS:
        if outcomes := [row["named"] is not None for row in rows if row["set"] == name]:
            totals.append(f"{name}: {sum(outcomes)} of {len(outcomes)} named.")
    return "\n".join([*lines, "", *totals])


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.splitlines()[0])
    parser.add_argument("--platform", choices=get_args(PlatformName), default="cpu")
    parser.add_argument("--world-size", type=int, nargs="+", default=[4])
    parser.add_argument("--set", choices=SETS, default="all", help="held-out: those on which nothing was tuned")
    parser.add_argument("--only", default="", help="regular expression: names of the faults to plant")
    parser.add_argument("--no-bases", action="store_true", help="only the faults")
    parser.add_argument("--no-faults", action="store_true", help="only the bases")
    parser.add_argument("--every-base", action="store_true", help="all bases in all of --case and --dtype")
    parser.add_argument("--case", nargs="+", default=["tiny", "odd"])
    parser.add_argument("--dtype", nargs="+", choices=get_args(DType), default=["float32", "bfloat16"])
    parser.add_argument("--deadline", type=float, default=4.0, help="seconds without progress in a call")
    parser.add_argument("--out", default="", help="file for everything as JSON")
    parser.add_argument("--table", default="", help="such a file: print its table, evaluate nothing")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
