"""Every problem's reference as a candidate through the whole harness (`python -m tests.references`).

A line for each problem and case; ends with 1 if one did not pass. What a case cannot take is said and not counted.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, get_args

from harness.errors import HarnessError
from harness.evaluate import Evaluator, reference_candidate
from harness.types import DType, Limits, PlatformName, Request
from problems import catalogue
from problems.spec import ProblemError
from tests.at_once import sandboxes, share


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    limits, began = Limits(), time.monotonic()
    found = [e for e in catalogue.entries(options.suite) if not options.only or e.number in options.only]
    over_at = began + options.seconds
    cases = [(entry, case) for entry in found for case in options.case or [""]]
    rows: list[dict[str, Any]] = []

    def evaluate(entry: catalogue.Entry, case: str) -> None:
        if time.monotonic() < over_at:
            rows.append(_row(pool, entry, case, options, limits))

    with sandboxes(options.platform, options.world_size, limits, options.at_once) as pool:
        try:
            share(pool, [partial(evaluate, entry, case) for entry, case in cases])
        finally:
            if options.out:
                Path(options.out).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    bad = [row for row in rows if row["verdict"] not in ("passed", "skipped")]
    skipped = sum(row["verdict"] == "skipped" for row in rows)
    print(
        f"{len(rows) - skipped - len(bad)} of {len(rows) - skipped} passed, {skipped} cannot be run, "
        f"{len(cases) - len(rows)} not reached, {options.platform}, {options.world_size} ranks, {options.dtype}, "
        f"{time.monotonic() - began:.0f} s"
    )
    return int(bool(bad))


def _row(
    box: Evaluator, entry: catalogue.Entry, case: str, options: argparse.Namespace, limits: Limits
) -> dict[str, Any]:
    row: dict[str, Any] = {"problem": entry.number, "name": entry.name, "case": case, "stage_s": {}, "summary": ""}
    began = time.monotonic()
    try:
        evaluation = box.evaluate(
            Request(
                candidate=reference_candidate(entry), problem=entry.number, suite=options.suite, case=case,
                platform=options.platform, world_size=options.world_size, dtype=options.dtype, timing=options.timing,
                limits=limits,
            )
        )  # fmt: skip
    except ProblemError as error:
        row |= {"verdict": "skipped", "summary": str(error)}
    except HarnessError as error:
        row |= {"verdict": f"{type(error).__name__}!", "summary": str(error)}
    else:
        row |= {"verdict": str(evaluation.verdict), "case": evaluation.case, "summary": evaluation.summary}
        row |= {"stage_s": evaluation.stage_s, "findings": [f.model_dump() for f in evaluation.findings]}
        if evaluation.measurement:
            row["measurement"] = evaluation.measurement.model_dump(mode="json")
    row["seconds"] = round(time.monotonic() - began, 2)
    right = row["verdict"] == "passed"
    mark = " " if right else "-" if row["verdict"] == "skipped" else "!"
    print(f"{mark} {entry.number:3} {entry.name:45} {row['case']:7} {row['verdict']:13} {row['seconds']:5.1f} s "
          f"{'' if right else row['summary'][:200]}", flush=True)  # fmt: skip
    return row


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.references", description=__doc__.splitlines()[0])
    parser.add_argument("--platform", choices=get_args(PlatformName), default="cpu")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--suite", default="", help="a folder of problems or a checkout of PKB; default: ours")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of problems")
    parser.add_argument("--case", nargs="+", help="default: each problem's own default")
    parser.add_argument("--dtype", choices=get_args(DType), default="float32")
    parser.add_argument("--timing", action="store_true", help="timed as well")
    parser.add_argument("--at-once", type=int, default=1, help="sandboxes that share the devices")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no further evaluation after these")
    parser.add_argument("--out", default="", help="file for everything as JSON")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
