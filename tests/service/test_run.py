"""`run_one` with a sandbox of no processes: what it wires together, and what it refuses before anything starts."""

import json
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from agent import models
from agent.models.base import ModelError
from harness.errors import UsageError
from harness.types import BuildReport, Limits, Request, Stage, Topology, Verdict
from problems.spec import ProblemError, Work
from runs.events import Budget, Event, RunConfig, RunFinished, RunResumed, RunStarted, ToolReturned
from runs.messages import Message
from runs.record import Record
from service import run
from service.commands.run import _exit_code

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


TURNS = (
    [("write_candidate", {"source": "wrong = 1\n"}), ("run_benchmark", {})],
    [
        ("write_candidate", {"source": RIGHT}),
        ("compile", {}),
        ("run_benchmark", {"case": "odd"}),
        ("run_benchmark", {}),
    ],
    [("submit", {})],
)


@pytest.fixture
def recorded(tmp_path: Path, evaluation, prompted) -> Path:
    """A run to be held against."""
    model = trajectory(tmp_path, *TURNS)
    done = run.run_one(config(model=model), root=tmp_path, on_event=lambda event: None, sandbox=Sandbox(evaluation))
    assert done.reason == "submitted"
    return tmp_path / done.run_id


def replayed(recorded: Path, evaluation, **changes):
    model = f"replay:{recorded}?strict"
    done = run.run_one(
        config(model=model, **changes), root=recorded.parent, on_event=lambda event: None, sandbox=Sandbox(evaluation)
    )
    return done


def test_a_strict_replay_that_agrees_ends_as_the_recording_did(recorded: Path, evaluation) -> None:
    done = replayed(recorded, evaluation)
    assert done.reason == "submitted" and done.target_met and done.config.model == f"replay:{recorded}?strict"
    again = run.run_one(
        done.config, root=recorded.parent, on_event=lambda event: None, sandbox=Sandbox(evaluation)
    )  # its own record is a recording as well
    assert again.reason == "submitted"
    # Figures and words may differ.
    path = recorded / "events.jsonl"
    path.write_text(path.read_text().replace('"value": 1.5', '"value": 7.5').replace("of 20 replies", "of 99 replies"))
    assert replayed(recorded, evaluation).reason == "submitted"


def tampered(recorded: Path, kind: str, number: int, change) -> None:
    lines = [json.loads(line) for line in (recorded / "events.jsonl").read_text().splitlines()]
    change([line for line in lines if line["kind"] == kind][number])
    (recorded / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def put(*path, value):
    def change(event: dict) -> None:
        for name in path[:-1]:
            event = event[name]
        event[path[-1]] = value

    return change


STALE = [{"cause": "stale", "text": "", "evidence": "", "certain": True}]


@pytest.mark.parametrize(
    ("kind", "number", "change", "said", "calls"),
    [
        ("run_started", 0, put("config", "case", value="odd"), "at the beginning: case is tiny, recorded odd", 0),
        ("run_started", 0, put("messages", 1, "text", value="T\nmore"),
         "at the beginning: a line of the user message is none, recorded more", 0),
        ("tool_returned", 0, put("ok", value=False),
         "at step 1, call 1 (write_candidate): ok is True, recorded False", 1),
        ("tool_returned", 0, put("candidate", value="beef"), "call 1 (write_candidate): candidate is ", 1),
        ("tool_returned", 1, put("evaluation", "verdict", value="race"),
         "at step 1, call 2 (run_benchmark): verdict is wrong_values, recorded race", 2),
        ("tool_returned", 1, put("evaluation", "findings", value=STALE),
         "call 2 (run_benchmark): findings of the evaluation is none, recorded stale", 2),
        ("tool_returned", 3, put("data", "build", value={"verdict": "compile_error"}),
         "at step 2, call 2 (compile): verdict of the build is none, recorded compile_error", 4),
        ("tool_returned", 4, put("data", "other_case", "verdict", value="race"),
         "at step 2, call 3 (run_benchmark): verdict at the other case is passed, recorded race", 5),
        ("tool_returned", 5, put("call", "arguments", value='{"x": 1}'),
         'at step 2, call 4 (run_benchmark): arguments is {}, recorded {"x": 1}', 6),
    ],
)  # fmt: skip
def test_the_first_difference_ends_a_strict_replay(
    recorded: Path, evaluation, kind: str, number: int, change, said: str, calls: int
) -> None:
    tampered(recorded, kind, number, change)
    done = replayed(recorded, evaluation)
    assert done.reason and done.reason.startswith("error: the replay differs ") and said in done.reason
    made = [e for e in Record.open(recorded.parent / done.run_id).events() if isinstance(e, ToolReturned)]
    assert len(made) == calls
    assert _exit_code(done) == 3
    assert run.run_one(
        done.config.model_copy(update={"model": f"replay:{recorded}"}), root=recorded.parent,
        on_event=lambda event: None, sandbox=Sandbox(evaluation),
    ).reason == "submitted", "loosely it goes on"  # fmt: skip


def test_a_strict_replay_that_ends_early_or_is_graded_otherwise(recorded: Path, evaluation) -> None:
    with pytest.raises(ModelError, match=r"ended \(budget: steps\) before the recorded call of submit at step 3"):
        replayed(recorded, evaluation, budget=Budget(steps=2))
    tampered(recorded, "run_finished", 0, put("official", "measurement", value=None))
    tampered(recorded, "run_finished", 0, put("official", "verdict", value="race"))
    with pytest.raises(ModelError, match="in the official evaluation: verdict is passed, recorded race"):
        replayed(recorded, evaluation)
    last = Record.list(recorded.parent)
    assert all(record.run().status == "finished" for record in last)


def test_edited_prompts_leave_the_workload_to_compare(recorded: Path, evaluation) -> None:
    tampered(recorded, "run_started", 0, put("prompts_hash", value="1" * 16))
    tampered(recorded, "run_started", 0, put("messages", 0, "text", value="other words"))
    assert replayed(recorded, evaluation).reason == "submitted"
    tampered(recorded, "run_started", 0, put("messages", 1, "text", value="```python\ndef reference(): ...\n```"))
    assert "code in the user message is none, recorded" in (replayed(recorded, evaluation).reason or "")


def test_strict_needs_a_recorded_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs a recorded run"):
        models.make(trajectory(tmp_path, *TURNS) + "?strict")


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
