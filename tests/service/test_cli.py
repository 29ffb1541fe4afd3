"""The command line: exit codes, what goes to which stream, and defaults. No ranks are started."""

import io
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from rich.console import Console

from harness import jail, lease, machine
from harness.errors import HarnessError
from harness.machine import PROVIDER_KEYS
from harness.types import Backend, Candidate, Limits, Stage, Verdict
from runs.events import LaneStarted, ModelReplied
from runs.fold import fold
from runs.messages import Turn
from runs.record import Record
from runs.requests import difference
from service import cli
from service.commands import run as run_command

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def plain_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No keys and no GPUs, whatever this machine has."""
    for name in PROVIDER_KEYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("RINGSMITH_DEBUG", raising=False)
    monkeypatch.setattr(machine, "scan_gpus", lambda: machine.GpuScan(reason="none here"))


@pytest.fixture
def ringsmith(capsys: pytest.CaptureFixture[str]):
    def call(*arguments: object) -> SimpleNamespace:
        code = cli.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return SimpleNamespace(
            code=code, out=out, err=err, lines=[json.loads(line) for line in out.splitlines() if line[:1] == "{"]
        )

    return call


@pytest.fixture
def candidate(tmp_path: Path) -> Path:
    path = tmp_path / "candidate.py"
    path.write_text("def solution(x):\n    return x\n")
    return path


@pytest.fixture
def sandbox(monkeypatch: pytest.MonkeyPatch, evaluation):
    """Stands in for `harness.evaluate`: answers from a list of verdicts or errors, and remembers what it was asked."""
    asked = SimpleNamespace(made=[], requests=[], answers=[], closed=0)

    class Sandbox:
        def __init__(self, platform: str, world_size: int, limits: Limits, isolation: str) -> None:
            asked.made.append((platform, world_size, limits.call_s, limits.first_call_s))
            asked.isolation = isolation

        def __enter__(self) -> "Sandbox":
            return self

        def __exit__(self, *error: object) -> None:
            asked.closed += 1

        def build_ahead(self, candidates):
            self.ahead = [candidate.hash for candidate in candidates]

        def evaluate(self, request, on_stage, *, last=False, allowance=None):
            asked.requests.append(request)
            assert last == (len(asked.requests) == len(self.ahead)), "ranks are kept warm only for a next candidate"
            on_stage(Stage.build)
            answer = asked.answers.pop(0) if asked.answers else Verdict.passed
            if isinstance(answer, Exception):
                raise answer
            return evaluation(request.candidate, answer)

    fake = ModuleType("harness.evaluate")
    fake.Sandbox = Sandbox
    fake.reference_candidate = lambda entry: Candidate(source=entry.name, backend=Backend.reference)
    monkeypatch.setitem(sys.modules, "harness.evaluate", fake)
    return asked


def test_version_and_help_of_every_command(ringsmith) -> None:
    assert ringsmith("--version").out == f"ringsmith {machine.harness_version()}\n"
    for command in ([], ["run"], ["eval"], ["profile"], ["problems"], ["problems", "list"], ["problems", "show"],
                    ["runs"], ["runs", "list"], ["runs", "show"], ["runs", "request"], ["sandbox"],
                    ["sandbox", "serve"], ["doctor"], ["mcp"],
                    *[["runs", name] for name in ("hint", "candidate", "pause", "resume", "cancel")]):  # fmt: skip
        shown = ringsmith(*command, "--help")
        assert shown.code == 0 and "Usage: ringsmith" in shown.out and not shown.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "999"], "no problem '999'"),
        (["run", "1", "--case", "nope"], "no case 'nope'"),
        (["run", "1", "--platform", "tpu"], "'cpu', 'cuda'"),
        (["run", "1", "--platform", "cuda"], "none here"),
        (["run", "1", "--world-size", "0"], "--world-size"),
        (["run", "1", "--steps", "many"], "--steps"),
        (["run", "1", "--usd", "nan"], "--usd"),
        (["eval", "x.py", "--problem", "1", "--call-deadline", "inf"], "finite"),
        (["run", "1", "--model", "nonsense"], "not a model"),
        (["eval", "x.py", "--problem", "999"], "no problem '999'"),
        (["eval", "x.py", "--problem", "1", "--case", "nope"], "no case 'nope'"),
        (["eval", "x.py", "--problem", "1", "--dtype", "int3"], "'bfloat16'"),
        (["eval", "x.py", "--problem", "1", "--backend", "fortran"], "'triton'"),
        (["eval", "x.py", "--problem", "1", "--protocol", "other"], "'pkb'"),
        (["eval", "x.py", "--problem", "1", "--trials", "0"], "--trials"),
        (["eval", "x.py", "--problem", "1", "--isolation", "some"], "'strict'"),
        (["run", "1", "--isolation", "some"], "'strict'"),
        (["eval", "no/such/file.py", "--problem", "1"], "cannot read no/such/file.py: No such file"),
        (["eval", ".", "--problem", "1"], "cannot read .: Is a directory"),
        (["eval", "--problem", "1"], "say which candidates"),
        (["eval", "x.py"], "--problem"),
        (["eval", "-", "-", "--problem", "1"], "can be read once only"),
        (["eval", "x.py", "--batch", "."], "leave out files"),
        (["eval", "x.py", "--problem", "1", "--follow"], "go with --batch"),
        (["eval", "--batch", "no/such/folder"], "no folder no/such/folder"),
        (["eval", "x.py", "--problem", "1", "--sandbox", "node:80"], "http://HOST:PORT"),
        (["run", "1", "--sandbox", "https://me:word@node"], "tokens go into a file"),
        (["run", "1", "--sandbox", "batch:/tmp"], "give --platform"),
        (["run", "1", "--sandbox", "http://node", "--sandbox-ca", "no.pem"], "no file no.pem"),
        (["sandbox", "serve", "--host", "0.0.0.0"], "needs a token"),
        (["sandbox", "serve", "--tls-cert", "x.pem"], "go together"),
        (["eval", "x.py", "--problem", "1", "--no-such-flag"], "--no-such-flag"),
        (["problems", "show", "allreduc"], "allreduce"),
        (["problems", "list", "--family", "foo"], "there are collective, context"),
        (["problems", "list", "--tag", "foo"], "there are all_gather"),
        (["runs", "show", "nope"], "no run 'nope'"),
        (["nope"], "nope"),
    ],
)
def test_usage_errors_exit_2_and_name_what_is_valid(ringsmith, tmp_path: Path, arguments: list[str], said: str) -> None:
    extra = ["--runs-dir", tmp_path] if arguments[:1] == ["run"] else []
    answer = ringsmith(*arguments, *extra)
    assert answer.code == 2
    assert said in answer.err
    assert answer.out == "" and "Traceback" not in answer.err


def test_problems_as_json(ringsmith) -> None:
    listed = ringsmith("problems", "list", "--json").lines
    assert listed[0]["number"] == 1 and "pkb" in listed[0]["cases"]
    family = listed[0]["family"]
    assert {problem["family"] for problem in ringsmith("problems", "list", "--family", family, "--json").lines} == {
        family
    }
    tag = listed[0]["tags"][0]
    assert all(tag in problem["tags"] for problem in ringsmith("problems", "list", "--tag", tag, "--json").lines)
    assert ringsmith("problems", "list", "--tag", "nope", "--json").lines == []
    (shown,) = ringsmith("problems", "show", "1", "--world-size", "4", "--json").lines
    assert "def reference" in shown["statement"] and "def inputs" not in shown["statement"]
    assert shown["work"]["pkb"]["link_in_bytes"] > 0
    text = ringsmith("problems", "show", "allreduce").out
    assert "def reference" in text and "4 ranks" not in text and "2 ranks, float32" in text


def test_doctor_names_keys_and_never_shows_their_values(ringsmith, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sekrit")
    answer = ringsmith("doctor", "--json")
    (diagnosis,) = answer.lines
    assert diagnosis["machine"]["keys"] == ["OPENAI_API_KEY"]
    assert answer.code == (0 if any(diagnosis["usable"].values()) else 3)
    text = ringsmith("doctor")
    assert "OPENAI_API_KEY" in text.out and "none here" in text.out
    assert "sekrit" not in answer.out + answer.err + text.out + text.err


def test_doctor_exits_3_where_nothing_can_run(ringsmith, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = machine.Toolchain(cxx=None, nvcc=None, ninja=None, torch=None, torch_cuda=None)
    monkeypatch.setattr(machine, "toolchain", lambda: bare)
    assert ringsmith("doctor").code == 3


def test_eval_prints_one_evaluation_a_line_in_order(ringsmith, sandbox, candidate: Path, tmp_path: Path) -> None:
    other = tmp_path / "empty.py"
    other.write_text("")
    sandbox.answers = [Verdict.wrong_values, Verdict.passed]
    answer = ringsmith("eval", candidate, other, "--problem", "1", "--case", "tiny", "--call-deadline", "3", "--json")
    assert answer.code == 1
    assert [line["verdict"] for line in answer.lines] == ["wrong_values", "passed"]
    assert len(answer.out.splitlines()) == 2
    assert f"{candidate}: build" in answer.err
    assert sandbox.made == [("cpu", 2, 3.0, 3.0)] and sandbox.closed == 1
    first = sandbox.requests[0]
    assert (first.problem, first.case, first.dtype, first.candidate.backend) == (1, "tiny", "float32", Backend.cpp)
    assert first.candidate.source == candidate.read_text() and first.timing


def test_eval_all_passed_is_0_and_readable(ringsmith, sandbox, candidate: Path) -> None:
    answer = ringsmith("eval", candidate, "reference", "--problem", "allreduce", "--no-timing", "--platform", "cpu")
    assert answer.code == 0
    assert f"{candidate}: PASSED" in answer.out and "reference: PASSED" in answer.out
    assert [request.candidate.backend for request in sandbox.requests] == [Backend.cpp, Backend.reference]
    assert not sandbox.requests[0].timing


def test_eval_reads_stdin(ringsmith, sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=SimpleNamespace(read=lambda: b"x = 1\n")))
    assert ringsmith("eval", "-", "--problem", "1", "--json").code == 0
    assert sandbox.requests[0].candidate.source == "x = 1\n"


def test_eval_refuses_bytes_that_are_not_text_before_anything_starts(ringsmith, sandbox, tmp_path: Path) -> None:
    path = tmp_path / "garbage.py"
    path.write_bytes(b"ab\xff\xfe")
    answer = ringsmith("eval", path, "--problem", "1")
    assert answer.code == 2 and "not UTF-8 text (byte 2)" in answer.err
    assert sandbox.made == []


def test_eval_infrastructure_exits_3_and_keeps_what_was_printed(ringsmith, sandbox, candidate: Path) -> None:
    sandbox.answers = [Verdict.passed, HarnessError("fork server died\nbadly")]
    answer = ringsmith("eval", candidate, candidate, candidate, "--problem", "1", "--json")
    assert answer.code == 3
    assert len(answer.lines) == 1
    assert answer.err.splitlines()[-2:] == ["error: fork server died", "    badly"]
    assert sandbox.closed == 1


def test_a_bug_is_one_line_unless_debugging(
    ringsmith, sandbox, candidate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.answers = [ZeroDivisionError("oops")]
    answer = ringsmith("eval", candidate, "--problem", "1")
    assert answer.code == 3 and "internal: ZeroDivisionError: oops" in answer.err and "Traceback" not in answer.err
    monkeypatch.setenv("RINGSMITH_DEBUG", "1")
    sandbox.answers = [ZeroDivisionError("oops")]
    assert "Traceback" in ringsmith("eval", candidate, "--problem", "1").err


@pytest.fixture
def recorded(tmp_path: Path, events) -> Path:
    """A folder with one finished run, one cut short and one that cannot be read."""
    for run_id, some in (
        ("20261121-101500-p01-allreduce-3f2a", events),
        ("20261121-101400-p01-allreduce-0000", events[:3]),
    ):
        with Record.create(tmp_path, run_id) as record:
            for event in some:
                record.append(event)
    broken = tmp_path / "20261121-101300-broken"
    broken.mkdir()
    (broken / "events.jsonl").write_text("{}\n")
    return tmp_path


def test_runs_list(ringsmith, recorded: Path, tmp_path: Path) -> None:
    answer = ringsmith("runs", "list", "--runs-dir", recorded, "--json")
    assert answer.code == 0
    assert [(line["status"], line["target_met"]) for line in answer.lines] == [
        ("finished", True),
        ("interrupted", False),
    ]
    assert "warning:" in answer.err and "broken" in answer.err
    text = ringsmith("runs", "list", "--runs-dir", recorded, "--limit", "1")
    assert "finished: submitted" in text.out and len(text.out.splitlines()) == 2
    assert ringsmith("runs", "list", "--runs-dir", tmp_path / "none").code == 0


def test_runs_show(ringsmith, recorded: Path) -> None:
    latest = ringsmith("runs", "show", "latest", "--runs-dir", recorded)
    assert latest.code == 0
    assert "official evaluation" in latest.out and "target met" in latest.out and "Start simple" not in latest.out
    told = ringsmith("runs", "show", recorded / "20261121-101500-p01-allreduce-3f2a", "--transcript").out
    assert "You write kernels." in told and "Start simple" in told and "-> run_benchmark" in told and "[loop]" in told
    assert "[run_benchmark, refused]" in told and "\x1b" not in told
    shown = ringsmith(
        "runs", "show", "20261121-101400-p01-allreduce-0000", "--runs-dir", recorded, "--json", "--transcript"
    )
    assert shown.lines[0]["status"] == "interrupted"
    assert [line["kind"] for line in shown.lines[1:]] == ["run_started", "model_replied", "tool_returned"]


def test_runs_request(ringsmith, capsys, recorded: Path, tmp_path: Path, events) -> None:
    first = {"model": "m", "messages": [{"text": "be good"}, {"text": "go\x9b2J \u202e"}], "tools": [{"name": "read"}]}
    second = {**first, "messages": [*first["messages"], {"text": "more"}]}
    with Record.create(tmp_path, "20261121-101600-p01-allreduce-1111") as record:
        record.append(events[0])
        for step, before, now in ((1, {}, first), (2, first, second)):
            record.append(ModelReplied(at=1.0, step=step, turn=Turn(), seconds=1.0, request=difference(before, now)))
    for step, body in ((1, first), (2, second)):
        assert cli.main(["runs", "request", "latest", str(step), "--runs-dir", str(tmp_path)]) == 0
        shown = capsys.readouterr().out
        assert json.loads(shown) == body and shown.isascii()
    absent = ringsmith("runs", "request", "latest", 3, "--runs-dir", tmp_path)
    assert absent.code == 2 and "the run has no step 3" in absent.err
    replayed = ringsmith("runs", "request", recorded / "20261121-101500-p01-allreduce-3f2a", 2)
    assert replayed.code == 2 and "no request of step 2: a replay sends none" in replayed.err


def test_runs_show_tells_of_lanes_and_the_judge(ringsmith, events, tmp_path: Path) -> None:
    judged = ModelReplied(at=1071.0, step=4, turn=Turn(text="Fuse them."), seconds=1.0, purpose="judge")
    with Record.create(tmp_path, "r") as record:
        for event in (*events[:-1], judged, LaneStarted(at=1072.0, lane=2), LaneStarted(at=1073.0, lane=3, text="Go.")):
            record.append(event)
    told = ringsmith("runs", "show", tmp_path / "r", "--transcript").out
    assert "[step 4, judge]\n    Fuse them.\n[lane 2]\n[lane 3]\n    Go.\n" in told
    (line,) = ringsmith("runs", "list", "--runs-dir", tmp_path, "--json").lines
    assert (line["strategy"], line["lanes"]) == ("loop", 3)


def test_run_without_model_or_key_replays_the_packaged_recording(
    ringsmith, monkeypatch, tmp_path: Path, events
) -> None:
    seen, watched = [], []

    def run_one(config, *, root, on_event, on_text, access):
        seen.append((config, root))
        watched.append(on_text is not None)
        for event in events:
            on_event(event)
        return fold(events)

    fake = ModuleType("service.run")
    fake.run_one = run_one
    monkeypatch.setitem(sys.modules, "service.run", fake)
    monkeypatch.setattr(run_command, "EXAMPLES", tmp_path)
    assert "no recording of problem 1 on cpu" in ringsmith("run", "1").err
    (tmp_path / "p01-cpu").mkdir()
    answer = ringsmith(
        "run",
        "1",
        "--runs-dir",
        tmp_path,
        "--usd",
        "2",
        "--wall",
        "60",
        "--speedup-target",
        "1.5",
        "--json",
        "--gpus",
        "3",
    )
    assert answer.code == 0
    assert "replaying the recorded run" in answer.err and "step 1/5: Start simple." in answer.err
    (line,) = answer.lines
    assert line["path"] == str(tmp_path / line["run_id"]) and line["target_met"]
    config, root = seen[0]
    assert config.model == f"replay:{tmp_path / 'p01-cpu'}" and root == tmp_path
    assert (config.world_size, config.budget.usd, config.budget.wall_s, config.target.speedup) == (3, 2.0, 60.0, 1.5)
    assert "official evaluation" in ringsmith("run", "1", "--runs-dir", tmp_path).out
    # A reply is shown while it is written on a terminal only, and not to a program.
    terminal = Console(file=io.StringIO(), force_terminal=True)
    monkeypatch.setattr(run_command, "stderr_console", lambda: terminal)
    ringsmith("run", "1", "--runs-dir", tmp_path)
    ringsmith("run", "1", "--runs-dir", tmp_path, "--json")
    assert watched == [False, False, True, False]
    monkeypatch.setenv("OPENAI_API_KEY", "sekrit")
    refused = ringsmith("run", "1")
    assert refused.code == 2 and "--model PROVIDER/MODEL" in refused.err and "sekrit" not in refused.err


@pytest.mark.parametrize(
    ("reason", "target_met", "code"),
    [("submitted", True, 0), ("budget: steps", False, 1), ("interrupted", False, 130), ("error: harness: x", True, 3)],
)
def test_exit_code_of_a_run(events, reason: str, target_met: bool, code: int) -> None:
    run = fold(events).model_copy(update={"reason": reason, "target_met": target_met})
    assert run_command.exit_code(run) == code


def test_the_installed_command_is_light_and_exits_as_main_says() -> None:
    heavy = "torch litellm mcp numpy pynvml fastapi nicegui sqlalchemy jinja2 matplotlib"
    check = f"import sys, service.cli; print([m for m in {heavy.split()} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    done = subprocess.run(
        [sys.executable, "-m", "service.cli", "runs", "show", "nope"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stderr.startswith("error: no run 'nope'") and done.stdout == ""


@pytest.mark.parametrize("level", ["auto", "strict", "none"])
def test_the_level_of_isolation_reaches_the_sandbox(ringsmith, sandbox, candidate, level) -> None:
    assert ringsmith("eval", candidate, "--problem", "1", "--isolation", level).code == 0
    assert sandbox.isolation == level


def test_a_jail_that_cannot_be_strict_is_an_infrastructure_error(ringsmith, candidate, monkeypatch) -> None:
    lame = jail.Jail(drops=("limits",), lacking={"own network": "not permitted"})
    monkeypatch.setattr(jail, "tried", lambda: lame)
    answer = ringsmith("eval", candidate, "--problem", "1", "--platform", "cpu", "--isolation", "strict")
    assert answer.code == 3 and "no own network (not permitted)" in answer.err and not answer.out


def test_quarantine_is_listed_and_lifted(ringsmith) -> None:
    lease.quarantine("cuda", [7], "does not answer")
    assert "quarantine cuda 7" in ringsmith("doctor").out
    assert "cuda 7 may be used again: does not answer" in ringsmith("doctor", "--lift-quarantine").out
    assert "no device is in quarantine" in ringsmith("doctor", "--lift-quarantine").out and not lease.quarantined()
