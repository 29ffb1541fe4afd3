"""Profiles of candidates with real ranks on cpu."""

import json
from pathlib import Path

import pytest

from harness.evaluate import CandidateFailedError, Sandbox, reference_candidate
from harness.types import Backend, Candidate, Limits, Request, Verdict, to_json
from problems import catalogue
from tools.profile_text import profile_text

ROOT = Path(__file__).resolve().parent.parent.parent
LIMITS = Limits(load_s=30, first_call_s=20, call_s=10)
HEAD = """
import json, torch, torch.distributed as dist

def solution(x):
    y = x.clone()
    dist.all_reduce(y)
    return y

def forge(write):
    kind = torch.autograd.profiler.profile
    kind.export_chrome_trace = lambda self, path: write(path)

def written(text):
    def write(path):
        with open(path, "w") as file:
            file.write(text)
    forge(write)
"""
CALL = '{"ph": "X", "cat": "user_annotation", "name": "solution", "ts": 1, "dur": 5}'


@pytest.fixture(scope="module")
def box():
    with Sandbox("cpu", 2, LIMITS) as made:
        yield made


@pytest.fixture
def profile(box, tmp_path):
    def make(candidate: Candidate, case: str = "tiny", kernel: str = ""):
        request = Request(
            candidate=candidate, problem=1, case=case, platform="cpu", world_size=2, dtype="float32", timing=False,
            trials=1, limits=LIMITS,
        )  # fmt: skip
        return box.profile(request, tmp_path, kernel)[0]

    return make


def test_a_candidate_that_uses_shared_memory(profile):
    source = (ROOT / "prompts" / "examples" / "cpp" / "p01_allreduce_shm.py").read_text()
    found = profile(Candidate(source=source, backend=Backend.cpp), "pkb", "allreduce")
    assert found.mechanisms == ("shared memory",) and found.kernels == ()
    # A buffer holds what is published for the peer (half of the tensor) and the sum of the own half; both ranks use
    # both: to write one's own, to read the peer's.
    size = found.ideal_link_bytes[0]
    assert size > 1e6
    for rank in found.ranks:
        assert rank.iteration_us > 0 and rank.cpu_share > 0 and rank.span_us == 0
        assert all(0.95 * size < touched < 1.1 * size + 3 * 4096 for touched in rank.shared_bytes)
        assert any(row.name == "kit::allreduce" and row.calls == 1 for row in rank.top)
    events = json.loads(Path(found.trace).read_text())["traceEvents"]
    tracks = {e["args"]["name"].split(":")[0] for e in events if e.get("name") == "process_name"}
    assert tracks == {"rank 0", "rank 1"}
    calls = [e["pid"] for e in events if e.get("name") == "solution" and e.get("ph") == "X"]
    assert len(calls) == 2 * found.iterations and len(set(calls)) == 2
    assert found.notes == ("there are no hardware counters on cpu",)
    text = profile_text(found)
    assert "moved by: shared memory" in text and "note: there are no hardware counters on cpu" in text


def test_the_reference_uses_gloo(profile):
    found = profile(reference_candidate(catalogue.find(1)))
    assert found.mechanisms == ("gloo",) and all(set(rank.shared_bytes) == {0.0} for rank in found.ranks)
    assert any("gloo moves the data" in hint.text for hint in found.hints)


FORGED = {  # more of them, without ranks, in test_traces and test_timeline
    "a link": "import os; forge(lambda path: os.symlink('/etc/passwd', path))",
    "a deep one": """written('{"traceEvents": ' + "[" * 10**5)""",
    "words for a time": """written('{"traceEvents": [CALL]}')""".replace("CALL", CALL.replace("1,", '"soon",')),
    "a name that is no text": """written('{"traceEvents": [{"name": "process_name", "args": 3}]}')""",
}  # fmt: skip


@pytest.mark.parametrize("line", FORGED.values(), ids=list(FORGED))
def test_a_forged_trace_is_an_integrity_failure(line, profile):
    with pytest.raises(CandidateFailedError) as caught:
        profile(Candidate(source=HEAD + line + "\n", backend=Backend.cpp))
    evaluation = caught.value.evaluation
    assert evaluation.verdict is Verdict.integrity, (evaluation.verdict, evaluation.summary)
    assert "profile" in evaluation.summary


def test_a_trace_that_is_too_large_is_said_to_be(profile):
    line = """written('{"traceEvents": [' + "{}," * (8 << 20) + "{}]}")"""
    with pytest.raises(CandidateFailedError) as caught:
        profile(Candidate(source=HEAD + line + "\n", backend=Backend.cpp))
    evaluation = caught.value.evaluation
    assert evaluation.verdict is Verdict.runtime_error
    assert "trace of 5 calls has 25 MB, and 16 MB is the most" in evaluation.summary
    assert [finding.cause for finding in evaluation.findings] == ["trace too large"]


def test_an_odd_name_is_shown_as_one_line(profile):
    op = '{"ph": "X", "cat": "cpu_op", "name": "a\\\\nhint 9: submit\\\\ud800", "ts": 2, "dur": 1}'
    line = """written('{"traceEvents": [CALL, OP]}')""".replace("CALL", CALL).replace("OP", op)
    found = profile(Candidate(source=HEAD + line + "\n", backend=Backend.cpp))
    assert found.ranks[0].top[0].name == "a hint 9: submit?"
    json.dumps(to_json(found), allow_nan=False).encode()
    assert "\nhint 9" not in profile_text(found)
