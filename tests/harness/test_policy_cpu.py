"""The gate in real processes: what a source hides shows in what was compiled from it."""

import pytest

from harness.evaluate import Sandbox
from harness.types import Backend, Candidate, Request, Stage, Verdict

LIBRARY = """
from harness import kit
SOURCE = 'extern "C" const char* name() { return "NAMECreate"; }'.replace("NAME", "cu.Multi.cast".replace(".", ""))
"""
AT_IMPORT = LIBRARY + "LIB = kit.build(SOURCE)\ndef solution(x):\n    return x\n"
IN_A_CALL = LIBRARY + "def solution(x):\n    kit.build(SOURCE + '// ' + str(x.shape))\n    return x\n"


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox("cpu", 2) as box:
        yield box


@pytest.mark.parametrize(("source", "stage"), [(AT_IMPORT, Stage.policy), (IN_A_CALL, Stage.correctness)])
def test_a_built_object_is_judged_before_it_is_loaded(source, stage, sandbox):
    evaluation = sandbox.evaluate(
        Request(
            candidate=Candidate(source=source, backend=Backend.cpp),
            problem=1,
            case="tiny",
            platform="cpu",
            world_size=2,
            dtype="float32",
            timing=False,
        )
    )
    assert evaluation.verdict is Verdict.policy, evaluation.summary
    assert evaluation.stage is stage
    assert "the compiled code contains 'cuMulticastCreate'" in evaluation.summary
