"""Findings of real builds and real ranks."""

import pytest

from harness.evaluate import Sandbox
from harness.types import Backend, Candidate, Request, Verdict

HEAD = "import torch\nfrom harness import kit\n\n"
NO_HEADER = HEAD + 'LIB = kit.build(r"""\nextern "C" int f(int n) { std::vector<int> v(n); return 0; }\n""")\n'
WILD = (
    HEAD
    + 'LIB = kit.build(r"""\nextern "C" void f(float* x, long n) { x[n] = 1; }\n""")\n\n\n'
    + "def solution(x):\n    LIB.f(x, 1 << 50)\n    return x\n"
)
MISSPELT = HEAD + "def solution(x):\n    if kit.rank() == 1:\n        torch.emtpy_like(x)\n    return x\n"


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox("cpu", 2) as sandbox:
        yield sandbox


def candidate(source: str) -> Candidate:
    return Candidate(source=source, backend=Backend.cpp)


def test_a_build_has_findings(sandbox):
    report = sandbox.compile(candidate(NO_HEADER))
    (found,) = report.findings
    assert (report.verdict, found.cause, found.certain) == (Verdict.compile_error, "missing header", True)
    assert found.text == "`std::vector` needs `#include <vector>` (line 5)"
    assert found.evidence == "candidate.py:5: error: 'vector' is not a member of 'std'"


@pytest.mark.parametrize(
    ("source", "verdict", "cause", "where"),
    [
        (NO_HEADER, Verdict.compile_error, "missing header", "(line 5)"),
        (WILD, Verdict.runtime_error, "segmentation fault", "(line 10)"),
        (MISSPELT, Verdict.api_error, "no such name", "did you mean `empty_like`? (rank 1, line 6)"),
    ],
)
def test_an_evaluation_has_findings(sandbox, source, verdict, cause, where):
    request = Request(
        candidate=candidate(source), problem=1, case="tiny", platform="cpu", world_size=2, dtype="float32", timing=False
    )
    evaluation = sandbox.evaluate(request)
    (found,) = evaluation.findings
    assert (evaluation.verdict, found.cause) == (verdict, cause) and found.text.endswith(where), found
