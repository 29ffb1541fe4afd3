"""What a session begins with."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness.errors import UsageError
from harness.types import Backend, Verdict
from runs.events import LaneStarted, RunStarted, ToolReturned
from runs.messages import ToolCall
from runs.record import Record
from service import cli
from service.debugger import settings
from service.debugger.editor import edit
from service.debugger.lead import lead
from service.debugger.origin import origin
from tests.runs.factories import candidate, config, evaluation, measurement
from tests.service.test_end_to_end import ROOT

CPU = {"problem": "1", "platform": "cpu"}


def test_flags_win_over_the_run_and_the_run_over_the_machine():
    base = config(case="tiny", world_size=3, check="pkb", trials=7, protocol="pkb", model="openai/x")
    taken = settings.new({}, base, None)
    assert (taken.case, taken.world_size, taken.check, taken.trials, taken.protocol) == ("tiny", 3, "pkb", 7, "pkb")
    assert (taken.model, taken.budget.steps, taken.strategy) == ("external:debugger", None, "loop")
    given = settings.new({"world_size": 2, "check": "oracle", "case": "odd"}, base, "openai/gpt-5")
    assert (given.case, given.world_size, given.check, given.trials) == ("odd", 2, "oracle", 7)
    assert settings.model_of(given) == "openai/gpt-5" and settings.model_of(taken) is None


def test_another_problem_or_platform_takes_its_own_defaults():
    base = config(case="tiny", platform="cuda", world_size=4, dtype="bfloat16", backend=Backend.cuda)
    other = settings.new({"problem": "13", "platform": "cpu"}, base, None)
    assert (other.problem, other.platform, other.world_size, other.dtype) == (13, "cpu", 2, "float32")
    assert other.backend is Backend.cpp and other.case != "tiny"


def test_what_is_no_session_is_refused():
    with pytest.raises(UsageError, match="no session of the debugger"):
        settings.model_of(config(model="openai/gpt-5"))
    with pytest.raises(UsageError, match="say which problem"):
        settings.new({}, None, None)


@pytest.fixture
def record(tmp_path):
    with Record.create(tmp_path, "r") as record:
        record.append(RunStarted(at=0.0, run_id="r", config=config(), prompts_hash="h", messages=()))
        yield record


def attempt(record, step, source, verdict=None, low=1.0):
    record.save_candidate(candidate(source))
    found = (
        evaluation(candidate(source), verdict, measurement(low) if verdict == "passed" else None) if verdict else None
    )
    record.append(
        ToolReturned(
            at=float(step),
            step=step,
            call=ToolCall(id="c", name="run_benchmark", arguments="{}"),
            ok=True,
            text="",
            seconds=1.0,
            candidate=candidate(source).hash,
            evaluation=found,
        )
    )


def test_an_attempt_is_named_by_number_hash_or_being_the_best(record):
    with pytest.raises(UsageError, match="has no attempt"):
        origin("r", lambda name: record)
    attempt(record, 1, "a")
    assert origin("r", lambda name: record).source == "a"
    with pytest.raises(UsageError, match="no attempt that passed"):
        origin("r@best", lambda name: record)
    attempt(record, 2, "b", Verdict.passed)
    attempt(record, 3, "c", Verdict.wrong_values)
    asked = []
    taken = {given: origin(given, lambda name: asked.append(name) or record).source for given in (
        "r", "r@best", "r@1", "r@3", f"some@where/r@{candidate('c').hash[:6]}"
    )}  # fmt: skip
    assert list(taken.values()) == ["b", "b", "a", "c", "c"]
    assert set(asked) == {"r", "some@where/r"}
    with pytest.raises(UsageError, match="no attempt 9"):
        origin("r@9", lambda name: record)


def test_a_number_that_two_lanes_have_is_refused(record):
    attempt(record, 1, "a")
    record.append(LaneStarted(at=2.0, lane=2))
    attempt(record, 3, "b")
    with pytest.raises(UsageError, match="several attempts 1"):
        origin("r@1", lambda name: record)


def test_what_an_editor_does_wrong_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("VISUAL", "no-such-editor-here --wait")
    assert "cannot start no-such-editor-here" in edit(tmp_path / "x.py")
    monkeypatch.setenv("VISUAL", "false")
    assert edit(tmp_path / "x.py") == "false ended with exit code 1"
    monkeypatch.delenv("VISUAL")
    monkeypatch.setenv("EDITOR", "cp '/dev/null'")
    assert edit(tmp_path / "x y.py") == "" and (tmp_path / "x y.py").read_text() == ""
    monkeypatch.delenv("EDITOR")
    monkeypatch.setenv("PATH", "")
    assert "set $VISUAL" in edit(tmp_path / "x.py")


def test_without_its_library_one_line_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "service.debugger.app", raising=False)
    monkeypatch.setitem(sys.modules, "textual.app", None)
    with pytest.raises(UsageError, match=r"pip install 'ringsmith\[debug\]'"):
        lead(None, config(), root=None, model=None, file=None, source=None, dark=True)


def test_a_file_that_is_no_text_is_refused_before_any_process_starts(tmp_path):
    (tmp_path / "x.py").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not UTF-8"):
        lead(None, config(), root=None, model=None, file=tmp_path / "x.py", source=None, dark=True)


def test_the_command_line_loads_no_screen():
    code = "import sys, service.cli, service.commands.debug; sys.exit('textual' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_without_a_terminal_it_is_refused(capsys):
    assert cli.main(["debug", "1"]) == 2
    assert "needs a terminal" in capsys.readouterr().err
