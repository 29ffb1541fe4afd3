"""A session of the debugger whose sandbox answers from a table: everything above it is real."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import pytest

from agent.external import External
from harness.types import Verdict
from runs.record import Record
from service.debugger.candidate_file import CandidateFile
from service.debugger.journal import Journal
from service.debugger.session import Debugging
from tests.agent.test_loop import MESSAGES, Clock, FakeSession, Scripted
from tests.runs.factories import candidate, config, evaluation, measurement
from tools.base import Tool, ToolError, ToolResult

GOOD, BETTER, WRONG, BROKEN = "x = 1\n", "x = 2\n", "x = 0\n", "x =\ny = 3\n"


@dataclass
class Bench(FakeSession):
    passed: list[str] = field(default_factory=list)
    at_work: threading.Event = field(default_factory=threading.Event)
    waits: bool = False

    def official(self, of):
        self.graded.append(of.source)
        return measured(of.source)


def measured(source):
    if source == WRONG:
        return evaluation(candidate(source), Verdict.wrong_values)
    return evaluation(candidate(source), Verdict.passed, measurement(1.0 + 0.5 * (source == BETTER)))


def write_candidate(session: Bench, source: str) -> ToolResult:
    """Write.

    Arguments:
    source: the text
    """
    if not source.strip():
        raise ToolError("source is empty; send the whole module.")
    session.current = candidate(source)
    return ToolResult("written", candidate=session.current)


def compile_candidate(session: Bench) -> ToolResult:
    """Compile."""
    if session.current.source == BROKEN:
        text = "COMPILE_ERROR\ncandidate.py:1: error: expected expression\n  >    1 | x =\n       2 | y = 3"
        return ToolResult(text, candidate=session.current, data={"build": {"verdict": "compile_error"}})
    return ToolResult("compiled", candidate=session.current)


def run_benchmark(session: Bench, timing: bool = True) -> ToolResult:
    """Run.

    Arguments:
    timing: or not
    """
    session.at_work.set()
    while session.waits:
        session.allowance.check()
        time.sleep(0.001)
    found = measured(session.current.source)
    session.passed += [found.candidate] if found.passed else []
    return ToolResult(f"it {found.verdict}", candidate=session.current, evaluation=found, device_s=found.device_s)


def submit(session: Bench) -> ToolResult:
    """End."""
    if not session.passed:
        raise ToolError("nothing to submit")
    return ToolResult("submitted", submitted=True)


TOOLS = {
    tool.name: tool
    for tool in (
        Tool("write_candidate", write_candidate),
        Tool("compile", compile_candidate),
        Tool("run_benchmark", run_benchmark),
        Tool("submit", submit),
    )
}


class Toolbox:
    def schemas(self):
        return [tool.schema for tool in TOOLS.values()]

    def call(self, session, name, arguments):
        try:
            return TOOLS[name].call(session, arguments)
        except ToolError as error:
            return ToolResult(str(error), ok=False)


@pytest.fixture
def bench():
    return Bench()


@pytest.fixture
def begin(tmp_path, bench):
    """Begins a session; it is left at the end of the test."""
    begun = []

    def begin(*turns, text=GOOD):
        record = Record.create(tmp_path, f"r{len(begun)}")
        journal = Journal()
        agent = External.start(
            config(model="external:debugger"), bench, record, MESSAGES, journal,
            prompts_hash="h", toolbox=Toolbox(), clock=Clock(),
        )  # fmt: skip
        file = CandidateFile(record.path / "debug" / "candidate.py")
        file.write(text)
        model = Scripted(list(turns), checked=False) if turns else None
        begun.append(Debugging(agent, journal, record, file, model))
        return begun[-1]

    yield begin
    for debugging in begun:
        debugging.leave()
        debugging.record.close()


def done(debugging):
    """Wait for what is under way; what is to be said of it."""
    deadline = time.monotonic() + 60
    while (said := debugging.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return said
