"""Cheating and honest candidates on real GPUs: every cheat gets its verdict, every honest trick passes.

With RINGSMITH_RESULTS=FILE every Evaluation is appended to it as a JSON line.
"""

import os
from pathlib import Path

import pytest

from harness.evaluate import Sandbox
from harness.types import Backend, Candidate, Evaluation, Limits, Request, Stage
from tests import candidates

pytestmark = pytest.mark.gpu
TESTS = Path(__file__).resolve().parent.parent
EVIL = sorted((TESTS / "evil" / "cuda").glob("*.py"))
HONEST = sorted((TESTS / "honest" / "cuda").glob("*.py"))
LIMITS = Limits(first_call_s=12)  # what a hang costs; compilation in the first call is not counted
WORLD_SIZE = int(os.environ.get("RINGSMITH_WORLD_SIZE", "4"))


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox("cuda", WORLD_SIZE, LIMITS) as box:
        yield box


def evaluate(sandbox: Sandbox, path: Path, **changes) -> Evaluation:
    settings = {"case": "pkb", "platform": "cuda", "world_size": WORLD_SIZE, "dtype": "bfloat16", "limits": LIMITS}
    candidate = Candidate(source=candidates.load(path).source, backend=Backend.cuda)
    request = Request(candidate=candidate, problem=candidates.problem(path), **(settings | changes))
    evaluation = sandbox.evaluate(request)
    if file := os.environ.get("RINGSMITH_RESULTS"):
        with open(file, "a") as results:
            results.write(evaluation.model_copy(update={"log": path.stem}).model_dump_json() + "\n")
    return evaluation


def explain(evaluation: Evaluation) -> str:
    ranks = "".join(f"rank {r.rank}: {r.message}\n{r.stack}{r.stderr}" for r in evaluation.ranks)
    return f"{evaluation.verdict} at {evaluation.stage}: {evaluation.summary}\n{evaluation.log[-2000:]}\n{ranks}"


@pytest.mark.parametrize("path", EVIL, ids=lambda path: path.stem)
def test_a_cheat_gets_its_verdict(path, sandbox):
    written = candidates.load(path)
    # Timing costs most of an evaluation: only those are timed that cannot be found out otherwise.
    evaluation = evaluate(sandbox, path, timing=written.stage is Stage.timing)
    assert evaluation.verdict in written.expected, explain(evaluation)


@pytest.mark.parametrize(
    ("case", "dtype", "timing"), [("pkb", "bfloat16", True), ("odd", "float32", False), ("tiny", "bfloat16", False)]
)
@pytest.mark.parametrize("path", HONEST, ids=lambda path: path.stem)
def test_an_honest_trick_passes(path, case, dtype, timing, sandbox):
    evaluation = evaluate(sandbox, path, case=case, dtype=dtype, timing=timing)
    assert evaluation.passed, explain(evaluation)
