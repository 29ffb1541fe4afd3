"""Findings on what a candidate begins and does not wait for."""

import pytest

from harness.evaluate import Sandbox
from harness.types import Backend, Candidate, Finding, Request, Verdict
from harness.unwaited import unwaited

HEAD = "import torch\nimport torch.distributed as dist\n\n\ndef solution(x):\n    out = x.clone()\n"
STREAM = "import torch\n\nSIDE = torch.cuda.Stream()\n\n\ndef solution(x):\n    return x\n"
OTHER = Finding(cause="stale", text="the former call's", evidence="", certain=True)


@pytest.mark.parametrize(
    ("body", "name", "why"),
    [
        ("    dist.all_reduce(out, async_op=True)\n", "dist.all_reduce", "what it returns is dropped"),
        ("    work = dist.all_reduce(out, async_op=True)\n", "dist.all_reduce", "nothing in the source calls `wait`"),
        ("    works = [dist.isend(out, 1)]\n", "dist.isend", "nothing in the source calls `wait`"),
        (
            "    dist.irecv(out, 0)\n    dist.isend(x, 1).wait()\n",
            "dist.irecv",
            "what it returns is dropped",
        ),
    ],
)
@pytest.mark.parametrize("verdict", [Verdict.wrong_values, Verdict.race])
def test_work_that_nothing_waits_for_is_named(verdict, body, name, why):
    (found,) = unwaited(verdict, f"{HEAD}{body}    return out\n", [OTHER])
    assert (found.cause, found.evidence, found.certain) == ("collective not waited for", why, False)
    assert found.text.startswith(f"`{name}` ") and found.text.endswith("(line 7)")


@pytest.mark.parametrize(
    "body",
    [
        "    dist.all_reduce(out, async_op=True).wait()\n",
        "    work = dist.all_reduce(out, async_op=True)\n    work.wait()\n",
        "    [w.wait() for w in dist.batch_isend_irecv([])]\n",
        "    dist.all_reduce(out, async_op=False)\n",
        "    dist.all_reduce(out)\n",
        "    this is no Python\n",
    ],
)
def test_what_is_waited_for_is_not(body):
    assert unwaited(Verdict.wrong_values, f"{HEAD}{body}    return out\n", []) == ()


def test_of_other_verdicts_nothing_is_said():
    source = f"{HEAD}    dist.all_reduce(out, async_op=True)\n"
    assert [unwaited(verdict, source, []) for verdict in (None, Verdict.deadlock, Verdict.integrity)] == [()] * 3


def test_a_race_that_nothing_explains_is_blamed_on_streams():
    (found,) = unwaited(Verdict.race, STREAM, [])
    assert found.cause == "stream not joined" and found.text.endswith("(line 3)")
    assert unwaited(Verdict.race, STREAM, [OTHER]) == unwaited(Verdict.wrong_values, STREAM, []) == ()


def test_an_evaluation_names_it():
    source = f"{HEAD}    dist.all_reduce(out, async_op=True)\n    return out\n"
    request = Request(
        candidate=Candidate(source=source, backend=Backend.cpp),
        problem=1, case="pkb", platform="cpu", world_size=2, dtype="float32", timing=False,
    )  # fmt: skip
    with Sandbox("cpu", 2) as sandbox:
        evaluation = sandbox.evaluate(request)
    assert evaluation.verdict in (Verdict.wrong_values, Verdict.race)
    assert evaluation.findings[0].cause == "collective not waited for", evaluation.findings
