"""Cheating and honest candidates on real GPUs: every cheat gets its verdict, every honest trick passes.

With RINGSMITH_RESULTS=FILE every Evaluation is appended to it as a JSON line.
"""

import os

import pytest

from harness.evaluate import Sandbox
from harness.types import Evaluation, Limits
from tests.candidates import Example, folder

pytestmark = pytest.mark.gpu
LIMITS = Limits(first_call_s=12)  # what a hang costs; compilation in the first call is not counted
WORLD_SIZE = int(os.environ.get("RINGSMITH_WORLD_SIZE", "4"))


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox("cuda", WORLD_SIZE, LIMITS) as box:
        yield box


def evaluate(sandbox: Sandbox, example: Example, dtype: str = "bfloat16", **changes) -> Evaluation:
    evaluation = sandbox.evaluate(example.request("cuda", WORLD_SIZE, dtype, LIMITS, **changes))
    if file := os.environ.get("RINGSMITH_RESULTS"):
        with open(file, "a") as results:
            results.write(evaluation.model_copy(update={"log": example.name}).model_dump_json() + "\n")
    return evaluation


def explain(evaluation: Evaluation) -> str:
    ranks = "".join(f"rank {r.rank}: {r.message}\n{r.stack}{r.stderr}" for r in evaluation.ranks)
    return f"{evaluation.verdict} at {evaluation.stage}: {evaluation.summary}\n{evaluation.log[-2000:]}\n{ranks}"


@pytest.mark.parametrize("example", folder("evil", "cuda"), ids=lambda example: example.name)
def test_a_cheat_gets_its_verdict(example, sandbox):
    # Timing costs most of an evaluation: only those are timed that cannot be found out otherwise.
    evaluation = evaluate(sandbox, example)
    assert evaluation.verdict in example.expected, explain(evaluation)


@pytest.mark.parametrize(
    ("case", "dtype", "timing"), [("pkb", "bfloat16", True), ("odd", "float32", False), ("tiny", "bfloat16", False)]
)
@pytest.mark.parametrize("example", folder("honest", "cuda"), ids=lambda example: example.name)
def test_an_honest_trick_passes(example, case, dtype, timing, sandbox):
    evaluation = evaluate(sandbox, example, dtype, case=case, timing=timing)
    assert evaluation.passed, explain(evaluation)
