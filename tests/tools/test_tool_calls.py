"""Each tool through the catalogue, as a model calls it."""

import json

import pytest

from harness import kit_header
from harness.errors import HarnessError
from harness.types import Verdict
from problems import catalogue as problems
from problems.spec import ProblemError
from tests.runs.factories import evaluation
from tools import catalogue

SOURCE = "import torch\n\n\ndef solution(x):\n    y = x\n    return y\n"


@pytest.fixture
def call(session):
    return lambda name, **arguments: catalogue.call(session, name, json.dumps(arguments))


@pytest.fixture
def written(call):
    return call("write_candidate", source=SOURCE)


def source(session) -> str:
    return session.current.candidate.source


def test_nothing_works_before_a_candidate_is_written(call):
    for name, arguments in (
        ("edit_candidate", {"old": "x", "new": "y"}),
        ("read", {"what": "candidate"}),
        ("compile", {}),
        ("run_benchmark", {}),
        ("profile", {}),
    ):
        result = call(name, **arguments)
        assert not result.ok and result.text == "There is no candidate yet: call write_candidate first."
    assert not call("inspect_failure").ok and not call("submit").ok


def test_writing_makes_attempts_and_the_same_text_does_not(call, session):
    first = call("write_candidate", source=SOURCE)
    assert first.ok and first.text == "attempt 1: 6 lines written." and first.candidate.source == SOURCE
    assert call("write_candidate", source=SOURCE).text.startswith("attempt 1:")
    assert call("write_candidate", source=SOURCE + "# more\n").text == "attempt 2: 7 lines written."
    assert not call("write_candidate", source=" \n ").ok
    assert [a.number for a in session.attempts] == [1, 2]


def test_python_that_does_not_parse_is_said_at_once(call):
    text = call("write_candidate", source="def solution(x):\n    y = (x\n    return y\n").text
    assert "It is not valid Python: " in text and "  >    2 |     y = (x" in text and "/" not in text
    assert "not valid Python" in call("write_candidate", source="x = '\0'").text


def test_an_edit_replaces_one_passage(call, written, session):
    result = call("edit_candidate", old="    y = x\n", new="    y = x + x\n    y = y / 2\n")
    assert result.ok and result.text == "attempt 2: 7 lines written. (change at line 5)"
    assert source(session) == SOURCE.replace("    y = x\n", "    y = x + x\n    y = y / 2\n")
    assert result.candidate == session.current.candidate and session.attempts[0].candidate.source == SOURCE


def test_an_edit_may_remove_and_says_where(call, written, session):
    assert "(change at line 5)" in call("edit_candidate", old="    y = x\n", new="").text
    assert "y = x" not in source(session)


def test_the_line_of_an_edit_is_where_it_was_made(call, written):
    """The new text stands elsewhere too."""
    assert "(change at line 6)" in call("edit_candidate", old="return y", new="x").text


def test_an_edit_must_name_one_passage(call, written, session):
    for old, why in (("y", "occurs 2 times"), ("return z", "does not occur"), ("", "does not occur")):
        result = call("edit_candidate", old=old, new="z")
        assert not result.ok and result.text.startswith(f"old {why} in the candidate")
    assert len(session.attempts) == 1


def test_a_source_without_end_is_not_taken(call, written, session):
    before = session.current.candidate
    for text in (
        call("write_candidate", source="#" * 300_000).text,
        call("edit_candidate", old="return", new="#" * 300_000 + "\n    return").text,
    ):
        assert "at most 262144 are read" in text
    assert session.current.candidate == before


def test_an_edit_keeps_special_characters(call, written, session):
    new = "    y = '\\\\1 \\n ä \\\\g<0>'\n"
    call("edit_candidate", old="    y = x\n", new=new)
    assert new in source(session)


def test_read_pages(call, written, session):
    text = call("read", what="candidate").text
    assert text.splitlines()[3] == "   4 | def solution(x):"
    assert call("read", what="reference").text == problems.statement(session.entry)
    assert call("read", what="header").text == kit_header()
    assert call("read", what="attempts").text == "attempt 1: not compiled"
    call("edit_candidate", old="return y", new="return x")
    assert call("read", what="attempt 1").text == f"attempt 1: not compiled\n\n{SOURCE}"
    assert call("read", what=" attempt 2 ").ok
    for what in ("attempt 0", "attempt 3", "attempt -1", "attempt x", "attempt ²", "attempt ", "secrets", ""):
        result = call("read", what=what)
        assert not result.ok and "\n" not in result.text, what


def test_no_page_leads_out_of_the_examples(call, written):
    for what in ("../cpp/p01_allreduce_shm", "/etc/passwd", "../../system.md.j2", "p01_allreduce_shm"):
        assert not call("read", what=what).ok


def test_an_example_that_solves_the_task_is_not_shown(call, session):
    session.backend = "cuda"
    text = call("read", what="examples").text
    assert "p13_gemm_allreduce: " in text and "p01" not in text
    assert "def solution" in call("read", what="p13_gemm_allreduce").text
    assert not call("read", what="p01_allreduce_oneshot").ok
    session.entry = problems.find(13)
    assert "p13" not in call("read", what="examples").text and call("read", what="p01_allreduce_oneshot").ok


def test_knowledge_pages_are_listed_and_read(call, session):
    session.backend = "cuda"
    listed = dict(line.split(": ", 1) for line in call("read", what="pages").text.splitlines())
    assert {"mechanisms", "ordering", "barriers", "debugging"} <= set(listed)
    assert all(20 < len(summary) < 120 for summary in listed.values())
    text = call("read", what="barriers").text
    assert text.startswith("# Barriers: ") and "Backends:" not in text and "rs_epoch" in text
    wrong = call("read", what="barrier")
    assert not wrong.ok and "pages" in wrong.text and "barriers, " in wrong.text and "p13_gemm_allreduce" in wrong.text


def test_a_cpu_session_has_the_pages_that_apply(call):
    assert [line.split(":")[0] for line in call("read", what="pages").text.splitlines()] == ["debugging"]
    assert call("read", what="debugging").ok
    assert not call("read", what="barriers").ok and not call("read", what="../knowledge/barriers").ok


def test_compile_reports_what_was_built(call, written, sandbox, report, session):
    sandbox.answers = [
        lambda c: report.make(c, built=("kit library (f)",), build_s=1.25),
        lambda c: report.make(c, Verdict.compile_error, "compiler: error: x", log="candidate.py:5:1: error: bad y"),
    ]
    assert call("compile").text == "compiled in 1.2 s. Built: kit library (f)."
    assert session.current.build.verdict is None
    failed = call("compile")
    assert failed.text.splitlines()[:2] == ["COMPILE_ERROR: compiler: error: x", "    candidate.py:5:1: error: bad y"]
    assert "  >    5 |     y = x" in failed.text and failed.data["build"]["verdict"] == "compile_error"
    assert call("read", what="attempts").text == "attempt 1: compiler: error: x, not run"


def test_run_benchmark_asks_for_the_sessions_case(call, written, sandbox, session):
    sandbox.answers = [ProblemError("no such case"), HarnessError("the machine broke")]
    assert call("run_benchmark").text == "no such case"
    request = sandbox.asked[0][0]
    assert (request.case, request.dtype, request.trials, request.timing, request.world_size) == (
        "tiny", "float32", 2, True, 2,
    )  # fmt: skip
    with pytest.raises(HarnessError):  # ours: ends the run, never charged to the candidate
        call("run_benchmark", timing=False)
    assert sandbox.asked[1][0].timing is False
    wrong = call("run_benchmark", case="gigantic")
    assert not wrong.ok and "it has pkb, large, odd, tiny" in wrong.text
    assert len(sandbox.asked) == 2


def judged(verdict):
    return lambda request: evaluation(request.candidate, verdict).model_copy(update={"case": request.case})


def test_a_lane_reaches_nothing_of_another(call, session, sandbox):
    sandbox.answers = [judged(Verdict.wrong_values)]
    call("write_candidate", source=SOURCE)
    call("run_benchmark")
    call("write_candidate", source=SOURCE + "# another\n")
    session.begin_lane(None)
    for name, arguments in (
        ("read", {"what": "candidate"}),
        ("edit_candidate", {"old": "y = x", "new": "y = 2 * x"}),
        ("compile", {}),
        ("run_benchmark", {}),
        ("profile", {}),
    ):
        assert call(name, **arguments).text == "There is no candidate yet: call write_candidate first."
    assert call("read", what="attempts").text == "no attempts yet"
    assert call("read", what="attempt 1").text == "there is no attempt 1; there are 0."
    assert call("inspect_failure").text == "No attempt has failed so far."
    assert call("write_candidate", source=SOURCE).text.startswith("attempt 1:")
    # The same text failed in the other lane, which this one is not told: the run's own fold knows it.
    sandbox.answers = [judged(Verdict.passed)]
    assert "failed before" not in call("run_benchmark").text and call("submit").ok
    session.begin_lane(None)
    assert not call("submit").ok


def test_a_lane_goes_on_from_one_candidate_alone(call, session, sandbox):
    sandbox.answers = [judged(Verdict.passed)]
    call("write_candidate", source="x = 1\n")
    chosen = call("write_candidate", source=SOURCE).candidate
    call("run_benchmark")
    call("write_candidate", source="x = 3\n")
    session.begin_lane(None)
    call("write_candidate", source="x = 4\n")
    session.begin_lane(chosen)
    shown = call("read", what="attempt 1").text
    assert shown.startswith("attempt 1: PASSED (case tiny") and shown.endswith(f"\n\n{SOURCE}")
    assert not call("read", what="attempt 2").ok and call("submit").ok
    assert call("edit_candidate", old="y = x", new="y = 2 * x").text.startswith("attempt 2:")
