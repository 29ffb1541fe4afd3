"""`python -m tests.build_candidates [WORD...]`: build the candidates for cuda, or those with a WORD in their path, as
the build stage does. Needs nvcc and no GPU; ends with 1 if one does not get as far as it should.
"""

import sys

from harness.evaluate import Sandbox
from harness.types import Verdict
from tests.candidates import folder

BEFORE_RANKS = {Verdict.policy, Verdict.compile_error, Verdict.api_error}


def main() -> int:
    failed = 0
    with Sandbox("cuda", 4) as sandbox:
        for example in folder("evil", "cuda") + folder("honest", "cuda"):
            if sys.argv[1:] and not any(word in str(example.path) for word in sys.argv[1:]):
                continue
            expected = set(example.expected)
            report = sandbox.compile(example.candidate)
            right = report.verdict in expected & BEFORE_RANKS or (
                report.verdict is None and bool(expected - BEFORE_RANKS)
            )
            note = ", ".join(report.built) or report.summary
            if report.verdict is not None and not right:
                note = f"{report.summary}\n{report.log}"
            print(f"{'ok  ' if right else 'BAD '} {example.name}  {report.build_s:.1f} s  {note}")
            failed += not right
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
