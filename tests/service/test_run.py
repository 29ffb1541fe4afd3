"""`run_one` with a sandbox of no processes: what it wires together, and what it refuses before anything starts."""

import json
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from harness.errors import UsageError
from harness.types import BuildReport, Limits, Request, Stage, Topology, Verdict
from problems.spec import ProblemError, Work
from runs.events import Budget, Event, RunConfig, RunFinished, RunResumed, RunStarted, ToolReturned
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

    def compile(self, candidate) -> BuildReport:
        return BuildReport(candidate=candidate.hash, verdict=None, summary="built")

    def warm_up(self) -> None:
        pass

    def evaluate(self, request: Request, on_stage=None, *, last=False):
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


LANES = (
    [("write_candidate", {"source": "wrong = 1\n"}), ("run_benchmark", {}), ("inspect_failure", {})],
    [("write_candidate", {"source": RIGHT}), ("run_benchmark", {}), ("submit", {}), ("read", {"what": "attempts"})],
    [("read", {"what": "attempt 1"}), ("edit_candidate", {"old": "x", "new": "y"}), ("submit", {})],
    [("write_candidate", {"source": RIGHT + "# mine\n"}), ("run_benchmark", {}), ("read", {"what": "attempts"})],
    [("submit", {})],
)


def test_lanes_are_apart_in_the_tools_too_whenever_the_process_is_killed(tmp_path: Path, evaluation, prompted) -> None:
    settings = config(model=trajectory(tmp_path, *LANES), strategy="lanes:2", budget=Budget(steps=9))
    done = run.run_one(settings, root=tmp_path, on_event=lambda event: None, sandbox=Sandbox(evaluation))
    assert done.reason == "submitted" and done.lanes == 2 and prompted[0]["budget"].steps == 4
    record = Record.open(tmp_path / done.run_id)
    texts = [event.text.split("\n")[0] for event in record.events() if isinstance(event, ToolReturned)]
    assert texts[5:9] == [
        "submitted",
        "there is no attempt 1; there are 0.",
        "There is no candidate yet: call write_candidate first.",
        "No candidate has passed run_benchmark every time it was run; there is nothing to submit.",
    ]
    assert texts[9].startswith("attempt 1:") and texts[11].startswith("attempt 1:")
    lines = (record.path / "events.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for kept in range(1, len(lines)):
        copy = shutil.copytree(record.path, tmp_path / "killed" / str(kept))
        (copy / "events.jsonl").write_text("".join(lines[:kept]), encoding="utf-8")
        run.resume_one(Record.open(copy), on_event=lambda event: None, sandbox=Sandbox(evaluation))
        again = [event for event in Record.open(copy).events() if not isinstance(event, RunResumed)]
        for one, other in zip(record.events(), again, strict=True):
            assert other.kind == one.kind
            if isinstance(one, ToolReturned):
                assert other.text == one.text, kept


@pytest.mark.usefixtures("no_processes")
@pytest.mark.parametrize(
    ("strategy", "said"),
    [("nope", "no strategy 'nope'"), ("lanes:0", "lanes:N"), ("lanes:9", "9 lanes need"), ("branch:5", "5 seeds need")],
)
def test_a_strategy_that_cannot_be_is_refused_before_any_process(tmp_path: Path, strategy: str, said: str) -> None:
    model = SimpleNamespace(name="m", priced=lambda: True)
    settings = config(strategy=strategy, budget=Budget(steps=8))
    with pytest.raises(UsageError, match=said):
        run.run_one(settings, root=tmp_path / "runs", on_event=lambda event: None, model=model)
    assert not (tmp_path / "runs").exists()
