"""From what ranks did to a verdict and one line."""

import os
import signal
from pathlib import Path

import pytest
import torch

from harness import kit
from harness.candidate_rank import NoSolutionError, import_candidate
from harness.diagnosis import candidate_line, classify_error, judge_failure, judge_mismatches, near
from harness.outcomes import Frame, Outcome, RankOutcome, describe_exit
from harness.progress import Phase, Words
from harness.rank import describe_error
from harness.types import Mismatch, Stage, Verdict

OWN = Frame("/scratch/candidate.py", 7, "solution")
WAIT = Frame("/lib/torch/distributed/distributed_c10d.py", 4000, "all_reduce")
HARNESS = Frame("/home/user/ringsmith/harness/candidate_rank.py", 90, "_call")
BARRIER = Frame("/home/user/ringsmith/harness/kit.py", 300, "barrier")


def described(source: str, folder: Path) -> dict:
    """The error that a candidate raises at import or in `solution(torch.ones(2, 3))`, as a rank reports it."""
    path = folder / "candidate.py"
    path.write_text(source)
    with pytest.raises(BaseException) as caught:
        import_candidate(path).solution(torch.ones(2, 3))
    return describe_error(caught.value)


ERRORS = {
    "syntax": ("x = (1\n", Verdict.compile_error, 1, "SyntaxError: '(' was never closed"),
    "indentation": ("def solution(x):\nreturn x\n", Verdict.compile_error, 2, "IndentationError: "),
    "no solution": ("def answer(x):\n    return x\n", Verdict.api_error, None, "NoSolutionError: "),
    "name": ("def solution(x):\n    return y\n", Verdict.api_error, 2, "NameError: name 'y' is not defined"),
    "attribute": ("def solution(x):\n    return x.total()\n", Verdict.api_error, 2, "AttributeError: "),
    "import": ("import nothing_there\n", Verdict.api_error, 1, "ModuleNotFoundError: "),
    "from import": ("from torch import nothing_there\n", Verdict.api_error, 1, "ImportError: "),
    "signature": ("def solution(x, y):\n    return x\n", Verdict.api_error, None, "TypeError: "),
    "keyword": ("def solution(x):\n    return x.sum(axes=1)\n", Verdict.api_error, 2, "TypeError: "),
    "kit": ("from harness import kit\nkit.rank()\ndef solution(x): ...\n", Verdict.api_error, 2, "KitError: "),
    "operand": ("def solution(x):\n    return x + 'a'\n", Verdict.runtime_error, 2, "TypeError: "),
    "shapes": ("def solution(x):\n    return x @ x\n", Verdict.runtime_error, 2, "RuntimeError: "),
    "value": ("def solution(x):\n    raise ValueError\n", Verdict.runtime_error, 2, "ValueError"),
    "assert": ("def solution(x):\n    assert x is None, 'odd'\n", Verdict.runtime_error, 2, "AssertionError: odd"),
    "memory": ("def solution(x):\n    return bytearray(1 << 60)\n", Verdict.out_of_memory, 2, "MemoryError"),
    "tensor memory": (
        "import torch\ndef solution(x):\n    return torch.empty(1 << 58)\n",
        Verdict.out_of_memory,
        3,
        "RuntimeError: ",
    ),
    "cuda memory": (
        "import torch\ndef solution(x):\n    raise torch.OutOfMemoryError('CUDA out of memory. Tried to')\n",
        Verdict.out_of_memory,
        3,
        "OutOfMemoryError: ",
    ),
    "deeper": (
        "def inner(x):\n    return x.nothing\ndef solution(x):\n    return inner(x)\n",
        Verdict.api_error,
        2,
        "AttributeError: ",
    ),
}


@pytest.mark.parametrize(("source", "verdict", "line", "message"), ERRORS.values(), ids=ERRORS)
def test_an_exception_gets_its_verdict_and_line(source, verdict, line, message, tmp_path):
    error = described(source, tmp_path)
    assert classify_error(error) is verdict
    assert error["line"] == line
    outcome = Outcome([RankOutcome(0, error=error), RankOutcome(1, reply={})])
    judged, summary, reports = judge_failure(outcome, Stage.load, ["", ""])
    assert judged is verdict and summary.startswith(f"rank 0: {message}") and "\n" not in summary
    assert (f"(line {line})" in summary) is (line is not None)
    assert [r.ok for r in reports] == [False, True] and reports[0].line == line


def test_the_stack_begins_with_the_candidate_and_names_no_folder(tmp_path):
    error = described(ERRORS["deeper"][0], tmp_path)
    lines = error["stack"].splitlines()
    assert [line.split(":")[0] for line in lines] == ["candidate.py"] * 2
    assert "inner" in lines[-1] and str(tmp_path) not in error["stack"]


def test_compiler_errors_show_the_first_error_line():
    error = describe_error(kit.BuildError("candidate.py: In function 'f':\ncandidate.py:3:5: error: no m\nmore error"))
    verdict, summary, _ = judge_failure(Outcome([RankOutcome(0, error=error)]), Stage.load, [""])
    assert verdict is Verdict.compile_error
    assert summary == "rank 0: compiler: candidate.py:3:5: error: no m"
    assert classify_error(describe_error(NoSolutionError("x"))) is Verdict.api_error


def words(phase: Phase = Phase.calling, calls: int = 3) -> Words:
    return Words(phase, calls, calls - 1, 1)


def error_of(rank: int, text: str = "broken") -> RankOutcome:
    return RankOutcome(rank, error=describe_error(ValueError(text)), words=words())


def exit_of(rank: int, how: str = "SIGSEGV") -> RankOutcome:
    return RankOutcome(rank, exit=how, words=words())


def silent(rank: int, *stack: Frame, phase: Phase = Phase.calling) -> RankOutcome:
    return RankOutcome(rank, silent=True, words=words(phase), stack=stack)


def judge(*ranks: RankOutcome, stage: Stage = Stage.correctness):
    return judge_failure(Outcome(list(ranks)), stage, [f"log {r.rank}" for r in ranks])


def test_an_error_says_more_than_a_death_and_a_death_more_than_silence():
    verdict, summary, reports = judge(silent(0, WAIT, OWN), exit_of(1), error_of(2))
    assert verdict is Verdict.runtime_error and summary == "rank 2: ValueError: broken"
    assert [r.ok for r in reports] == [False] * 3
    verdict, summary, _ = judge(silent(0, WAIT, OWN), exit_of(1))
    assert verdict is Verdict.runtime_error
    assert summary == "rank 1 ended the process while inside call 3: SIGSEGV"
    verdict, summary, _ = judge(RankOutcome(0, reply={}), silent(1, WAIT, OWN))
    assert verdict is Verdict.deadlock


def test_all_guilty_ranks_are_named():
    assert judge(error_of(0), error_of(1))[1].startswith("all ranks: ValueError")
    assert judge(error_of(0), silent(1, WAIT), error_of(2))[1].startswith("ranks 0, 2: ValueError")
    assert judge(error_of(0))[1].startswith("rank 0: ")


def test_a_success_is_not_to_be_judged():
    with pytest.raises(AssertionError):
        judge(RankOutcome(0, reply={}))


DEADLOCKS = {
    "one rank waits, one finished": [RankOutcome(0, reply={}), silent(1, WAIT, OWN)],
    "all wait in a library": [silent(0, WAIT, OWN), silent(1, WAIT, OWN)],
    "all wait in a kit barrier": [silent(0, BARRIER, OWN), silent(1, BARRIER, OWN)],
    "all wait for the device": [silent(0, HARNESS, phase=Phase.draining), silent(1, HARNESS, phase=Phase.draining)],
    "one computes for ever, the others wait for it": [silent(0, OWN), silent(1, WAIT, OWN)],
    "one computes for ever, the others finished": [silent(0, OWN), RankOutcome(1, reply={})],
    "nothing is known": [silent(0), silent(1)],
}


@pytest.mark.parametrize("ranks", DEADLOCKS.values(), ids=DEADLOCKS)
def test_ranks_that_wait_are_a_deadlock(ranks):
    verdict, summary, reports = judge(*ranks)
    assert verdict is Verdict.deadlock and "\n" not in summary and summary.startswith("no progress: ")
    assert [r.message == "" for r in reports] == [r.ok for r in ranks]


def test_all_ranks_in_their_own_code_are_a_timeout():
    ranks = silent(0, OWN, HARNESS), silent(1, Frame("candidate.py", 9, "inner"), OWN)
    for rank in ranks:
        rank.busy = 0.4
    verdict, summary, _ = judge(*ranks)
    assert verdict is Verdict.timeout
    assert "rank 0 inside call 3 at line 7" in summary and "rank 1 inside call 3 at line 9" in summary


def test_ranks_that_use_no_processor_are_blocked_whatever_their_frame():
    verdict, _, _ = judge(silent(0, OWN), silent(1, OWN))
    assert verdict is Verdict.deadlock


def test_a_compilation_or_an_import_that_does_not_end_is_a_timeout():
    verdict, summary, _ = judge(silent(0, HARNESS, OWN, phase=Phase.building), silent(1, WAIT, OWN))
    assert verdict is Verdict.timeout and summary.startswith("compilation did not end: ")
    for stage in (Stage.load, Stage.build):
        verdict, summary, _ = judge(silent(0, WAIT, OWN, phase=Phase.loading), stage=stage)
        assert verdict is Verdict.timeout
        assert summary == (
            "importing the candidate did not end: rank 0 importing the candidate at line 7, "
            "in distributed_c10d.py all_reduce"
        )


def test_a_hang_says_where_each_rank_is_and_who_finished():
    ranks = (RankOutcome(0, reply={}, words=words()), silent(1, WAIT, OWN, HARNESS), silent(2, BARRIER, OWN, HARNESS))
    _, summary, reports = judge(*ranks)
    assert summary == (
        "no progress: rank 1 inside call 3 at line 7, in distributed_c10d.py all_reduce; "
        "rank 2 inside call 3 at line 7, in kit.py barrier; rank 0 finished"
    )
    assert reports[1].line == 7 and reports[1].calls_completed == 2
    assert reports[1].stack == "candidate.py:7 in solution\ndistributed_c10d.py:4000 in all_reduce\n"
    assert reports[2].stack == "candidate.py:7 in solution\nkit.py:300 in barrier\n", "the harness's frames but kit's"
    assert reports[1].stderr == "log 1"


def test_the_candidates_line_is_the_innermost():
    assert candidate_line((WAIT, Frame("/x/candidate.py", 3, "inner"), OWN)) == 3
    assert candidate_line((WAIT,)) is None and candidate_line(()) is None


def test_how_a_process_ended():
    def status_of(end) -> int:
        if (pid := os.fork()) == 0:
            end()
        return os.waitpid(pid, 0)[1]

    assert describe_exit(status_of(lambda: os._exit(3))) == "exit 3"
    assert describe_exit(status_of(lambda: os.kill(os.getpid(), signal.SIGKILL))) == "SIGKILL"
    assert describe_exit(None) == "closed its channel"


def mismatch(**changes) -> Mismatch:
    fields = {
        "trial": 0, "output": "out", "shape": (4, 4), "wrong": 4, "total": 16, "nonfinite": 0, "max_error": 1.23456,
        "max_allowed": 0.01, "rms_error": 0.5, "rms_allowed": 0.002,
    }  # fmt: skip
    return Mismatch.model_validate(fields | changes)


def test_wrong_values_in_one_line():
    assert judge_mismatches([[], [mismatch()]]) == (
        "rank 1: 4 of 16 elements of out wrong (25.0%); largest error 1.23, allowed 0.01"
    )
    assert judge_mismatches([[mismatch()], [mismatch(wrong=5)]]).startswith(
        "all ranks: up to 5 of 16 elements of out wrong on a rank (31.2%); largest error 1.23"
    )
    assert "2 of them NaN or infinite" in judge_mismatches([[mismatch(nonfinite=2)], []])
    lost = judge_mismatches([[mismatch(wrong=0)], [mismatch(wrong=0, rms_error=0.7)], []])
    assert lost.startswith("ranks 0, 1: precision lost everywhere in out: RMS error 0.7, allowed 0.002")


def test_errors_hardly_larger_than_allowed_come_from_arithmetic():
    little = mismatch(max_error=0.0104, rms_error=0.0015)
    assert near([[little], []]) == pytest.approx(1.04)
    assert near([[little], [mismatch(wrong=0, max_error=0.005, rms_error=0.0036)]]) == pytest.approx(1.8)
    assert near([[mismatch(max_error=0.012, rms_error=0.009)]]) == pytest.approx(1.2)
    assert near([[little], [mismatch(max_error=0.03, rms_error=0.001)]]) is None
    assert near([[little.model_copy(update={"nonfinite": 1})]]) is None
    exact = mismatch(max_error=0.01, max_allowed=0, rms_error=0.01, rms_allowed=0)
    assert near([[exact]]) is None


def test_the_largest_error_is_that_of_all_ranks_and_outputs():
    many = mismatch(wrong=5, max_error=4.66, max_allowed=0.2)
    large = mismatch(wrong=1, max_error=4.85, max_allowed=0.1)
    assert judge_mismatches([[many], [large]]).endswith("; largest error 4.85, allowed 0.1")
    other = large.model_copy(update={"output": "out[1]"})
    assert judge_mismatches([[many, other]]).endswith("; largest error 4.85 in out[1], allowed 0.1")
    within = mismatch(wrong=0, max_error=9, max_allowed=10)
    assert judge_mismatches([[many, within]]).endswith("; largest error 4.66, allowed 0.2")
