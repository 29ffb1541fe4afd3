"""The worked examples of `prompts/examples` through the whole harness, timed (`python -m tests.worked_examples`).

A line for each example and case, and its evaluation as a JSON line in `--out` (`python -m tests.gpu.table` prints
those as a table); ends with 1 if one did not pass.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import re
import sys
import time
from pathlib import Path
from typing import get_args

from harness.errors import HarnessError
from harness.evaluate import Sandbox
from harness.types import BACKENDS, Candidate, DType, Evaluation, Limits, PlatformName, Request
from tests.gpu.table import times

_EXAMPLES = Path(__file__).resolve().parent.parent / "prompts" / "examples"


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    over_at = time.monotonic() + options.seconds
    files = sorted(path for backend in BACKENDS[options.platform] for path in (_EXAMPLES / backend).glob("p*.py"))
    files = [path for path in files if any(fnmatch.fnmatch(path.stem, pattern) for pattern in options.only)]
    right = done = 0
    limits = Limits()
    with Sandbox(options.platform, options.world_size, limits) as box:
        for case in options.case:
            for path in files:
                if time.monotonic() < over_at:
                    right, done = right + _evaluate(box, path, case, options, limits), done + 1
    print(f"{right} of {done} passed; {len(files) * len(options.case) - done} not reached")
    return int(right < done)


def _evaluate(box: Sandbox, path: Path, case: str, options: argparse.Namespace, limits: Limits) -> bool:
    request = Request(
        candidate=Candidate(source=path.read_text(encoding="utf-8"), backend=path.parent.name),
        problem=int(re.match(r"p(\d+)", path.stem)[1]), case=case, platform=options.platform,
        world_size=options.world_size, dtype=options.dtype, limits=limits,
    )  # fmt: skip
    began = time.monotonic()
    try:
        evaluation = box.evaluate(request)
    except HarnessError as error:
        print(f"! {path.stem:32} {case:6} {type(error).__name__}: {str(error)[:200]}", flush=True)
        return False
    seconds, measured = time.monotonic() - began, evaluation.measurement
    if options.out:
        with Path(options.out).open("a", encoding="utf-8") as file:
            file.write(evaluation.model_copy(update={"log": path.stem}).model_dump_json() + "\n")
    figures = f"device {times(measured.device)}  eager {times(measured.eager)}" if measured else _failure(evaluation)
    mark = " " if evaluation.passed else "!"
    print(f"{mark} {path.stem:32} {case:6} {evaluation.verdict:13} {seconds:5.1f} s  {figures}", flush=True)
    return evaluation.passed


def _failure(evaluation: Evaluation) -> str:
    return " | ".join([evaluation.summary, *(finding.text for finding in evaluation.findings)])[:300]


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.worked_examples", description=__doc__.splitlines()[0])
    parser.add_argument("--platform", choices=get_args(PlatformName), default="cpu")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--case", nargs="+", default=["pkb"])
    parser.add_argument("--dtype", choices=get_args(DType), default="bfloat16")
    parser.add_argument("--only", nargs="+", default=["*"], help="names, with * and ?")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no further evaluation after these")
    parser.add_argument("--out", default="", help="file that evaluations are appended to as JSON lines")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
