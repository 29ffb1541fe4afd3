"""What a model reads about its candidate: at most a screen, with its own line, without the harness's paths."""

import re

import pytest

from harness.types import (
    Backend,
    BuildReport,
    Candidate,
    Environment,
    Evaluation,
    Latency,
    Measurement,
    Mismatch,
    RankReport,
    Ratio,
    Stage,
    Timing,
    Verdict,
)
from tools.text import context, evaluation_text, failure_text, log_lines

SOURCE = "".join(f"line_{n} = {n}\n" for n in range(1, 101))
CANDIDATE = Candidate(source=SOURCE, backend=Backend.cpp)
FAILURES = [v for v in Verdict if v is not Verdict.passed]
PATHS = re.compile(r"/dev/shm|/work|/home|/root|/tmp|\.venv")
FATAL = """Fatal Python error: Segmentation fault

Current thread 0x00007f7520a1051c (most recent call first):
  File "/dev/shm/ringsmith-123-abcdef/candidate-2/candidate.py", line 42 in solution
  File "/home/user/ringsmith/harness/candidate_rank.py", line 90 in _call
  File "/home/user/ringsmith/harness/rank.py", line 107 in main
"""
STACK = "candidate.py:40 in solution: x = helper()\n" + "candidate.py:42 in helper: return y\n" * 20
COMPILER = """candidate.py: In function 'int f(int)':
candidate.py:42:12: error: 'm' was not declared in this scope
   42 |     return m;
      |            ^
In file included from /usr/include/c++/12/vector:64, from /dev/shm/ringsmith-1-a/kit.cpp:3:
/home/user/ringsmith/harness/include/ringsmith.h:12:3: error: no member
candidate.py(50): error: identifier "q" is undefined
candidate.py:60:1: error: fourth
candidate.py:61:1: error: fifth
"""


def mismatch(**changes) -> Mismatch:
    fields = {
        "trial": 0, "output": "out", "shape": (64, 64), "wrong": 6, "total": 4096, "nonfinite": 2,
        "max_error": 3.0, "max_allowed": 0.1, "rms_error": 0.5, "rms_allowed": 0.01,
        "first": [{"index": (63, n), "got": n, "expected": 7.25} for n in range(6)], "chunks_wrong": (0.0, 0.25),
    }  # fmt: skip
    return Mismatch.model_validate(fields | changes)


def failed_rank(rank: int, verdict: Verdict) -> RankReport:
    values = verdict in (Verdict.wrong_values, Verdict.race)
    return RankReport(
        rank=rank,
        ok=False,
        stage=Stage.correctness,
        calls_completed=3,
        message="wrong values" if values else "OSError: [Errno 2] No such file: '/dev/shm/ringsmith-1-a/weights.bin'",
        line=None if values else 42,
        stack="" if values else STACK,
        exit="SIGSEGV" if verdict is Verdict.runtime_error else "",
        mismatches=(mismatch(), mismatch(output="out[1]")) if values else (),
        stderr="x" * 500 + "\n" + FATAL,
    )


def evaluation(verdict: Verdict, ranks: int = 2, **changes) -> Evaluation:
    fields = {
        "candidate": CANDIDATE.hash,
        "backend": "cpp",
        "problem": 1,
        "name": "allreduce",
        "case": "pkb",
        "sizes": {"m": 1024, "n": 512},
        "world_size": ranks,
        "dtype": "bfloat16",
        "check": "oracle",
        "trials": 3,
        "verdict": verdict,
        "stage": "correctness",
        "summary": "rank 0: OSError: no file /dev/shm/ringsmith-1-a/weights.bin (line 42)",
        "ranks": tuple(failed_rank(r, verdict) for r in range(ranks)) if verdict is not Verdict.passed else (),
        "log": COMPILER if verdict is Verdict.compile_error else "",
        "environment": Environment(
            platform="cpu", devices=("cpu",), torch="2", python="3.11", harness="0.1", isolation=()
        ),
    }
    return Evaluation.model_validate(fields | changes)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16, 64])
@pytest.mark.parametrize("verdict", FAILURES)
def test_a_failure_is_at_most_a_screen_without_the_harnesss_paths(verdict, ranks):
    text = failure_text(evaluation(verdict, ranks), SOURCE)
    assert len(text.splitlines()) <= 60
    assert max(map(len, text.splitlines())) <= 450
    assert not PATHS.search(text), PATHS.search(text)
    assert text.startswith(f"{verdict} at stage correctness, case pkb (m=1024, n=512), bfloat16\n")
    if ranks <= 16:
        for rank in range(ranks):
            assert f"rank {rank}: " in text


@pytest.mark.parametrize("verdict", [v for v in FAILURES if v not in (Verdict.wrong_values, Verdict.race)])
def test_a_failure_shows_the_candidates_line_with_its_context(verdict):
    text = failure_text(evaluation(verdict), SOURCE)
    shown = "    40 | line_40 = 40\n    41 | line_41 = 41\n  >   42 | line_42 = 42\n    43 | line_43 = 43\n"
    assert re.sub(" +", " ", shown) in re.sub(" +", " ", text)


def test_wrong_values_show_where_and_by_how_much():
    text = failure_text(evaluation(Verdict.wrong_values), SOURCE)
    assert "out [64, 64], trial 1: 6 of 4096 elements wrong; largest error 3 (allowed 0.1)" in text
    assert "2 elements are NaN or infinite" in text
    assert "(as many chunks as ranks): 0: 0%, 1: 25%" in text
    assert "[63, 5] is 5, should be 7.25" in text
    assert "out[1] [64, 64]" in text and "all 0" not in text
    zeros = mismatch(first=[{"index": (0,), "got": 0, "expected": 1.5}])
    report = failed_rank(0, Verdict.wrong_values).model_copy(update={"mismatches": (zeros,)})
    text = failure_text(evaluation(Verdict.race).model_copy(update={"ranks": (report,)}), SOURCE)
    assert "the wrong values shown are all 0" in text


def test_ranks_that_did_well_take_one_line():
    ok = RankReport(rank=1, ok=True, stage=Stage.correctness, calls_completed=3, stderr="noise", stack="noise")
    one = evaluation(Verdict.deadlock).model_copy(update={"ranks": (failed_rank(0, Verdict.deadlock), ok)})
    text = failure_text(one, SOURCE)
    assert "\nrank 1: ok (calls completed: 3)\n" in text and "noise" not in text
    assert text.splitlines()[-1].startswith("Not determined: which signal is missing.")


def test_all_ranks_are_shown_in_full_where_they_fit():
    short = [failed_rank(r, Verdict.runtime_error).model_copy(update={"stack": "", "stderr": ""}) for r in range(4)]
    text = failure_text(evaluation(Verdict.runtime_error, 4).model_copy(update={"ranks": tuple(short)}), SOURCE)
    assert text.count("> ") == 4 and "..." not in text


@pytest.mark.parametrize("verdict", FAILURES)
def test_the_first_answer_to_a_failure_is_two_lines(verdict):
    lines = evaluation_text(evaluation(verdict)).splitlines()
    assert len(lines) <= 2
    assert lines[0].startswith(f"{verdict.upper()} at stage correctness (case pkb, bfloat16, 2 ranks): rank 0: OSError")
    assert not PATHS.search(" ".join(lines))
    if verdict is not Verdict.integrity:
        assert lines[1]


def test_compiler_errors_come_with_their_lines():
    lines = log_lines(COMPILER, SOURCE)
    text = "\n".join(lines)
    assert len(lines) <= 24 and not PATHS.search(text)
    assert lines[0] == "    candidate.py:42:12: error: 'm' was not declared in this scope"
    assert "  >   42 | line_42 = 42" in lines
    assert "    ringsmith.h:12:3: error: no member" in lines
    assert "  >   50 | line_50 = 50" in lines, "nvcc writes the line in parentheses"
    assert lines[-1] == "... and 2 more errors"


def test_a_log_without_errors_is_shown_from_its_start():
    assert log_lines("\n".join(f"step {n}" for n in range(100)), SOURCE) == [f"    step {n}" for n in range(24)]
    assert log_lines("", SOURCE) == []


@pytest.mark.parametrize(("line", "shown"), [(1, [1, 2, 3]), (100, [98, 99, 100]), (50, [48, 49, 50, 51, 52])])
def test_context_stays_inside_the_source(line, shown):
    lines = context(SOURCE, line)
    assert [int(text.strip("> ").split(" ")[0]) for text in lines] == shown
    assert [text.startswith("  >") for text in lines] == [n == line for n in shown]


def test_lines_are_those_that_python_counts():
    source = "a = 1\f  # \x85\u2028\r\nb = '\x1c'\rc = 1 / 0\nd = 1\n"
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile(source, "candidate.py", "exec"), {})
    assert caught.traceback[-1].lineno + 1 == 3
    assert context(source, 3, 0) == ["  >    3 | c = 1 / 0"] and len(context(source, 4, 9)) == 4


def test_context_beyond_the_source_is_empty():
    assert context(SOURCE, 200) == [] and context("", 1) == []


def latency(us: float) -> Latency:
    return Latency(median_us=us, p10_us=us - 1, p90_us=us + 1, min_us=us - 2, samples=60, skew_us=0.5)


def test_a_measurement_says_all_figures():
    timing = Timing(candidate=latency(100), reference=latency(150), speedup=Ratio(value=1.5, low=1.45, high=1.55))
    measured = Measurement(
        protocol="ringsmith", eager=timing, device_note="no launch queue", sol_us=25.0, bound_by="HBM"
    )
    text = evaluation_text(evaluation(Verdict.passed, measurement=measured))
    assert text.splitlines() == [
        "PASSED (case pkb, bfloat16, 2 ranks): correct in 3 trials on all ranks.",
        "eager   100.0 us (p10 99.0, p90 101.0, skew 0.5); reference 150.0 us (p10 149.0, p90 151.0, skew 0.5); "
        "speed-up 1.500x, 95% interval [1.450, 1.550]",
        "device  not measured: no launch queue",
        "floor   25.0 us (HBM, datasheet): 25% reached",
    ]
    calibrated = measured.model_copy(update={"achievable_us": 40.0, "achievable_bound_by": "latency"})
    assert evaluation_text(evaluation(Verdict.passed, measurement=calibrated)).splitlines()[-1] == (
        "floor   25.0 us (HBM, datasheet), 40.0 us at rates measured on this machine (latency): 25% / 40% reached"
    )
    by_pkb = measured.model_copy(
        update={
            "protocol": "pkb", "eager": timing.model_copy(update={"speedup": Ratio(value=1.5, low=1.5, high=1.5)}),
        }
    )  # fmt: skip
    assert evaluation_text(evaluation(Verdict.passed, measurement=by_pkb)).splitlines()[1] == (
        "eager   mean 100.0 us (p10 99.0, p90 101.0, skew 0.5); reference mean 150.0 us (p10 149.0, p90 151.0, "
        "skew 0.5); speed-up 1.500x"
    )
    assert evaluation_text(evaluation(Verdict.passed)).endswith("\nNot timed.")
    moved = evaluation(Verdict.passed).model_copy(update={"mechanisms": ("copy engine",)})
    assert evaluation_text(moved).splitlines()[1:] == ["moved by: copy engine", "Not timed."]


def test_a_build_report_reads_alike(session, sandbox):
    from tools import catalogue

    catalogue.call(session, "write_candidate", '{"source": "x = 1\\n"}')
    path = "(/home/user/.venv/lib/python3.11/site-packages/torch/__init__.py)"
    sandbox.answers = [
        lambda candidate: BuildReport(
            candidate=candidate.hash,
            verdict=Verdict.api_error,
            summary=f"ImportError: cannot import name 'nothing' from 'torch' {path} (line 1)",
            log="candidate.py:1 in <module>: from torch import nothing\n",
        )
    ]
    result = catalogue.call(session, "compile", "{}")
    assert result.text.startswith("API_ERROR: ImportError: cannot import name 'nothing' from 'torch' (__init__.py)")
    assert not PATHS.search(result.text)
    assert catalogue.call(session, "inspect_failure", "").text.startswith("attempt 1: api_error at stage build: Import")
