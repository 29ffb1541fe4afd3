"""Whatever a candidate's text is, what reads it in the supervisor answers."""

import pytest

from harness import causes, policy
from harness.mechanisms import mechanisms
from harness.types import RankReport, Stage, Verdict
from harness.unwaited import unwaited

CALL = "def solution(x):\n    return {}\n"
AWKWARD = {
    "attributes": CALL.format("x" + ".a" * 400 + ".all_reduce(x, async_op=True)"),
    "more attributes": CALL.format("x" + ".a" * 20_000),
    "calls": CALL.format("x" + "()" * 20_000),
    "subscripts": CALL.format("x" + "[0]" * 20_000),
    "operators": CALL.format("x" + " + x" * 20_000),
    "strings": CALL.format("'a'" + " + 'a'" * 20_000),
    "signs": CALL.format("-" * 20_000 + "1"),
    "brackets": CALL.format("(" * 5000 + "x" + ")" * 5000),
    "some brackets": CALL.format("[" * 150 + "x" + "]" * 150),
    "lambdas": CALL.format("lambda: " * 3000 + "x"),
    "conditions": CALL.format("x if x else " * 3000 + "x"),
    "blocks": "".join(f"{' ' * n}if x:\n" for n in range(99)) + " " * 99 + "pass\n",
    "branches": "if x:\n    pass\n" + "elif x:\n    pass\n" * 3000,
    "digits": CALL.format("9" * 20_000),
    "NUL": "x = 1\0\n",
    "surrogate": "x = '\\ud800'\n",
    "mark": "\ufeffimport torch\ndef solution(x):\n    return x\n",
    "encoding": "# coding: utf-7\nx = 1\n",
    "no Python": "if if if",
    "empty": "",
}


@pytest.mark.parametrize("source", AWKWARD.values(), ids=AWKWARD)
def test_every_reader_answers(source):
    ranks = (RankReport(rank=0, ok=False, stage=Stage.correctness, message="RecursionError", line=3, stack="x"),)
    assert policy.violation(source) is None and not policy.names_multicast(source)
    assert policy.names_nccl(source) is None or "all_reduce" in source
    for platform in ("cpu", "cuda"):
        assert isinstance(mechanisms(source, platform, False), tuple)
    for verdict in Verdict:
        found = causes.explain(verdict, "RecursionError: at line 3", "error: no such thing", ranks, source)
        assert isinstance((*unwaited(verdict, source, found), *found), tuple)
