"""`python -m tests.build_candidates [--at-once N] [WORD...]`: build the candidates for cuda, or those with a WORD in
their path, as the build stage does. Needs nvcc and no GPU; ends with 1 if one does not get as far as it should. What is
built is kept in `$RINGSMITH_CACHE`, so that evaluations after it do not build.
"""

import argparse
import os
import sys
from functools import partial

from harness.pool import Pool
from harness.types import Limits, Verdict
from tests.at_once import sandboxes, share
from tests.candidates import Example, folder

BEFORE_RANKS = {Verdict.policy, Verdict.compile_error, Verdict.api_error}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.build_candidates")
    parser.add_argument("words", metavar="WORD", nargs="*", help="in the paths of those to build")
    parser.add_argument("--at-once", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="half the cores")
    options = parser.parse_args()
    chosen = [
        example
        for example in folder("evil", "cuda") + folder("honest", "cuda")
        if not options.words or any(word in str(example.path) for word in options.words)
    ]
    failed: list[str] = []
    with sandboxes("cuda", 4, Limits(), min(options.at_once, len(chosen)) or 1) as pool:
        share(pool, [partial(_build, pool, example, failed) for example in chosen])
    print(f"{len(chosen) - len(failed)} of {len(chosen)} as they should be", *failed)
    return 1 if failed or not chosen else 0


def _build(pool: Pool, example: Example, failed: list[str]) -> None:
    expected = set(example.expected)
    report = pool.compile(example.candidate)
    right = report.verdict in expected & BEFORE_RANKS or (report.verdict is None and bool(expected - BEFORE_RANKS))
    note = ", ".join(report.built) or report.summary
    if report.verdict is not None and not right:
        note = f"{report.summary}\n{report.log}"
    print(f"{'ok  ' if right else 'BAD '} {example.name}  {report.build_s:.1f} s  {note}", flush=True)
    if not right:
        failed.append(example.name)


if __name__ == "__main__":
    sys.exit(main())
