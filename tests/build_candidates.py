"""`python -m tests.build_candidates [WORD...]`: build the candidates for cuda, or those with a WORD in their path, as
the build stage does. Needs nvcc and no GPU; ends with 1 if one does not get as far as it should.
"""

import sys
from pathlib import Path

from harness.evaluate import Sandbox
from harness.types import Backend, Candidate, Verdict
from tests import candidates

ROOT = Path(__file__).resolve().parent
BEFORE_RANKS = {Verdict.policy, Verdict.compile_error, Verdict.api_error}


def main() -> int:
    failed = 0
    paths = sorted(path for folder in ("evil", "honest") for path in (ROOT / folder / "cuda").glob("*.py"))
    with Sandbox("cuda", 4) as sandbox:
        for path in paths:
            if sys.argv[1:] and not any(word in str(path) for word in sys.argv[1:]):
                continue
            written = candidates.load(path)
            report = sandbox.compile(Candidate(source=written.source, backend=Backend.cuda))
            right = report.verdict in written.expected & BEFORE_RANKS or (
                report.verdict is None and bool(written.expected - BEFORE_RANKS)
            )
            note = (
                ", ".join(report.built) or report.summary
                if report.verdict is None or right
                else f"{report.summary}\n{report.log}"
            )
            print(
                f"{'ok  ' if right else 'BAD '} {path.parent.parent.name}/{path.stem}  {report.build_s:.1f} s  {note}"
            )
            failed += not right
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
