"""The code that prompts show must work: the pages' example on real ranks, CUDA sources through nvcc without a GPU."""

import re
import shutil
from pathlib import Path

import pytest

from harness.evaluate import Sandbox
from harness.types import Backend, Candidate, Request

PROMPTS = Path(__file__).resolve().parents[2] / "prompts"
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")

# The pages show a ring shift; all-gather is W - 1 of them.
ALL_GATHER = """
def solution(tensor, _shift=solution):
    parts, rank, world_size = [tensor], kit.rank(), kit.world_size()
    for _ in range(world_size - 1):
        parts.append(_shift(parts[-1]))
    return torch.stack([parts[(s - rank) % world_size] for s in range(world_size)])
"""


def page_example(backend: str) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", (PROMPTS / "backends" / f"{backend}.md").read_text(), re.S)
    return code


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_cpp_pages_example_works(world_size):
    candidate = Candidate(source=page_example("cpp") + ALL_GATHER, backend=Backend.cpp)
    with Sandbox("cpu", world_size) as box:
        evaluation = box.evaluate(
            Request(candidate=candidate, problem=2, case="odd", platform="cpu", world_size=world_size, dtype="float32")
        )
    assert evaluation.passed, evaluation.summary


@needs_nvcc
def test_cuda_sources_compile_without_a_gpu():
    """All in one session: the page's example and every worked example that kit builds."""
    examples = {path.stem: path.read_text() for path in sorted((PROMPTS / "examples" / "cuda").glob("*.py"))}
    sources = {"page": page_example("cuda"), **{n: s for n, s in examples.items() if "kit.build" in s}}
    assert len(sources) >= 5
    with Sandbox("cuda", 2) as box:
        reports = {
            name: box.compile(Candidate(source=source, backend=Backend.cuda)) for name, source in sources.items()
        }
    failed = {name: report.log or report.summary for name, report in reports.items() if report.verdict is not None}
    assert not failed
    assert all(report.built for report in reports.values())
