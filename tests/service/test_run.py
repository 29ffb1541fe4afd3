"""`run_one` with a sandbox of no processes: what it wires together, and what it refuses before anything starts."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from harness.errors import UsageError
from harness.types import BuildReport, Limits, Request, Stage, Topology, Verdict
from problems.spec import ProblemError, Work
from runs.events import Budget, Event, RunConfig, RunFinished, RunStarted
from runs.messages import Message
from runs.record import Record
from service import run

RIGHT = "def solution(x):\n    return x\n"


class Sandbox:
    """Passes every candidate but those that say `wrong`."""

    platform_name = "cpu"
    world_size = 2
    limits = Limits()
    closed = False

    def __init__(self, evaluation) -> None:
        self._evaluation = evaluation

    def topology(self) -> Topology:
        return Topology(platform="cpu", devices=("NVIDIA H200",), summary="two ranks")

    def inspect(self, entry, case, dtype: str) -> Work:
        return Work(link_in_bytes=450e9)

    def compile(self, candidate, *, allowance=None) -> BuildReport:
        return BuildReport(candidate=candidate.hash, verdict=None, summary="built")

    def warm_up(self) -> None:
        pass

    def evaluate(self, request: Request, on_stage=None, *, last=False, allowance=None):
        verdict = Verdict.wrong_values if "wrong" in request.candidate.source else Verdict.passed
        return self._evaluation(request.candidate, verdict, case=request.case, stage=Stage.timing)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a process was started")

    fake = ModuleType("harness.evaluate")
    fake.Sandbox = refuse
    monkeypatch.setitem(sys.modules, "harness.evaluate", fake)


@pytest.fixture
def prompted(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """What the prompt was rendered from."""
    seen: list[dict] = []

    def render(**facts):
        seen.append(facts)
        return (Message(role="system", text="S"), Message(role="user", text="T")), "0" * 16

    monkeypatch.setattr(run, "render", render)
    return seen


def config(**changes) -> RunConfig:
    fields = {
        "problem": 1,
        "case": "tiny",
        "platform": "cpu",
        "world_size": 2,
        "dtype": "float32",
        "backend": "cpp",
        "model": "replay:/nowhere",
    }
    return RunConfig(**{**fields, **changes})


def trajectory(folder: Path, *turns: list[tuple[str, dict]]) -> str:
    path = folder / "turns.jsonl"
    lines = [{"tool_calls": [{"name": name, "arguments": given} for name, given in turn]} for turn in turns]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"replay:{path}"


def test_a_replay_runs_its_tools_and_leaves_a_record(tmp_path: Path, evaluation, prompted) -> None:
    model = trajectory(
        tmp_path,
        [("write_candidate", {"source": "wrong = 1\n"}), ("run_benchmark", {})],
        [("write_candidate", {"source": RIGHT}), ("run_benchmark", {})],
        [("submit", {})],
    )
    seen: list[Event] = []
    sandbox = Sandbox(evaluation)
    done = run.run_one(config(model=model), root=tmp_path, on_event=seen.append, sandbox=sandbox)
    assert done.reason == "submitted" and done.target_met and done.official is not None
    assert not sandbox.closed  # it was passed in
    assert isinstance(seen[0], RunStarted) and isinstance(seen[-1], RunFinished)
    record = Record.open(tmp_path / done.run_id)
    assert list(record.events()) == seen and not record.is_being_written()
    assert done.best is not None and record.candidate(done.best.candidate).source == RIGHT
    (facts,) = prompted
    assert facts["sol_us"] == pytest.approx(1e6) and "run_benchmark" in facts["tools"]
    assert "def reference" in facts["statement"]


@pytest.mark.usefixtures("no_processes")
@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"problem": 999}, ProblemError, "no problem"),
        ({"case": "nope"}, ProblemError, "no case"),
        ({"platform": "cuda", "backend": "parallelkittens"}, UsageError, "set THUNDERKITTENS_ROOT"),
        ({"model": "nonsense"}, UsageError, "not a model"),
        ({"model": "replay:/no/such/file"}, UsageError, "/no/such/file"),
    ],
)
def test_what_cannot_be_is_refused_before_any_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict, error: type, said: str
) -> None:
    monkeypatch.delenv("THUNDERKITTENS_ROOT", raising=False)
    with pytest.raises(error, match=said):
        run.run_one(config(**changes), root=tmp_path / "runs", on_event=lambda event: None)
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("no_processes")
def test_a_usd_limit_needs_a_price_before_any_process(tmp_path: Path) -> None:
    model = SimpleNamespace(name="lab/model", priced=lambda: False)
    with pytest.raises(UsageError, match="price of lab/model is unknown"):
        run.run_one(config(budget=Budget(usd=1.0)), root=tmp_path / "runs", on_event=lambda event: None, model=model)
