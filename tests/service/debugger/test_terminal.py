"""The real command in a real terminal, with a real editor and real ranks."""

from __future__ import annotations

import os
import signal

import pytest

from runs.events import AgentCalled, ModelReplied, PersonActed, RunResumed, ToolReturned
from runs.record import Record
from tests.service.debugger.terminal import Terminal
from tests.service.scripts import right, turn, write
from tests.service.test_end_to_end import HANG, TINY, command

EDITOR = """#!/bin/sh
printf '\\033[H\\033[2JEDITING %s\\n' "$1"
read -r answer
printf 'def solution(*args)\\n    return args\\n' > "$1"
"""


@pytest.fixture
def start(tmp_path):
    """Starts `ringsmith debug`, in 80x24, without any provider's key."""
    editor = tmp_path / "editor"
    editor.write_text(EDITOR)
    editor.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    environment |= {"VISUAL": "", "EDITOR": str(editor)}

    def start(*arguments, **size):
        return Terminal(command("debug", *arguments, "--runs-dir", tmp_path / "runs"), environment, **size)

    return start


def only(root):
    (record,) = Record.list(root)
    return record


def test_a_session_from_the_reference_to_the_official_evaluation(start, tmp_path):
    write(tmp_path / "scripts", "p01", [
        turn(("write_candidate", {"source": right(1)}), ("run_benchmark", {"timing": False}), text="The reference."),
    ])  # fmt: skip
    with start("1", *TINY, "--model", f"scripted:{tmp_path / 'scripts'}") as terminal:
        terminal.wait("ready", "candidate.py: edited", "attempts: none yet", "? help e edit c compile")
        terminal.press("e")
        assert "attempts" not in terminal.wait("EDITING "), "the editor has the terminal"
        terminal.press("\r")
        terminal.wait("def solution(*args)", "candidate.py: edited")
        terminal.press("c")
        terminal.wait("COMPILE_ERROR", "❱1 def solution", "compile_error", "candidate.py: attempt 1")
        terminal.press("h")
        terminal.wait("What to tell the model")
        terminal.press("start plain\r")
        terminal.wait("The reference.", "model", "passed", "candidate.py: attempt 2", "ready")
        terminal.press("\t\t\x1b[A")
        terminal.press("d")
        terminal.wait("- attempt 1", "+ the file now", "+import torch")
        terminal.press("q")
        terminal.gone("+ the file now")
        terminal.press("q")
        terminal.wait("official evaluation of the best")
        terminal.press("o")
        assert terminal.ended() == 0
        said = terminal.text.replace("\n", "")  # wrapped
        assert "finished, submitted; target met" in said and "official evaluation" in said
    record = only(tmp_path / "runs")
    run, events = record.run(), list(record.events())
    assert (run.reason, run.target_met, run.helped) == ("submitted", True, True)
    called = [e.call.name for e in events if isinstance(e, AgentCalled)]
    assert called == ["write_candidate", "compile", "submit"]
    assert [e.text for e in events if isinstance(e, PersonActed)] == ["start plain"]
    (replied,) = [e for e in events if isinstance(e, ModelReplied)]
    assert len(replied.turn.tool_calls) == 2


def test_a_hang_is_broken_off_and_a_lost_connection_loses_nothing(start, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(HANG)
    with start("1", *TINY, "--file", file, columns=130, rows=40) as terminal:
        terminal.wait("ready", "mine.py: edited", "time.sleep(1000)")
        file.write_text(HANG.replace("1000", "2000"))  # an IDE saves
        terminal.wait("time.sleep(2000)")
        terminal.press("r")
        terminal.wait("run_benchmark 1 s")
        terminal.press("\x1b")
        terminal.wait("has broken this call", "ready")
        terminal.press("R")
        terminal.wait("run_benchmark 1 s")
        terminal.hang_up()
    record = only(tmp_path / "runs")
    run = record.run()
    assert (run.reason, run.official) == ("interrupted", None) and not record.is_being_written()
    broken = [e for e in record.events() if isinstance(e, ToolReturned) and e.call.name == "run_benchmark"]
    assert len(broken) == 2 and all("broken this call off" in e.text for e in broken)

    with start("--resume", "latest", "--light", "--json") as terminal:
        terminal.wait("ready", "candidate.py: attempt 1", "time.sleep(2000)")
        os.kill(terminal.process.pid, signal.SIGTERM)
        assert terminal.ended() == 130
    assert [e for e in record.events() if isinstance(e, RunResumed)] and record.run().reason == "interrupted"
