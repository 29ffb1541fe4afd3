"""Exports of real and made-up records, read back by what they are for."""

import json
import math

import pytest

from harness.types import Ratio, Verdict
from runs.events import (
    ContextReset,
    LaneStarted,
    ModelReplied,
    ResultsShortened,
    RunStarted,
    ToolReturned,
    UserMessage,
)
from runs.exports.chat import chat_lines
from runs.exports.inspect_log import write_log
from runs.exports.talks import talks
from runs.loading import load, read
from runs.messages import Message, ToolCall, Turn, Usage
from runs.record import DEFAULT_ROOT, Record
from tests.runs.factories import candidate, config, evaluation, measurement
from tests.runs.record_sets import write_set
from tools.catalogue import schemas

EXAMPLES = DEFAULT_ROOT.parent / "examples"
A = candidate("a")
BEGINNING = (Message(role="system", text="be good"), Message(role="user", text="do it"))


def replied(step, *calls, text=""):
    usage = Usage(input_tokens=10, output_tokens=5)
    return ModelReplied(
        at=step, step=step, turn=Turn(text=text, tool_calls=calls, usage=usage, cost_usd=0.5), seconds=1
    )


def returned(step, call, evaluated=None, ok=True):
    return ToolReturned(
        at=step + 0.5,
        step=step,
        call=call,
        ok=ok,
        text=f"result of {call.id}",
        seconds=1,
        evaluation=evaluated,
        device_s=2,
    )


def call(name, identity, arguments="{}"):
    return ToolCall(id=identity, name=name, arguments=arguments)


@pytest.fixture
def record(tmp_path):
    """Two conversations: a context that began anew; and a last reply of which one call was never made."""
    write, bench, broken, never = (
        call("write_candidate", "w"),
        call("run_benchmark", "b"),
        call("x", "x", "{bad"),
        call("submit", "n"),
    )
    with Record.create(tmp_path, "run") as written:
        for event in (
            RunStarted(at=0, run_id="run", config=config(), prompts_hash="h", messages=BEGINNING),
            replied(1, write, bench, text="first"),
            returned(1, write),
            returned(1, bench, evaluation(A, measured=measurement(1.5, math.inf))),
            UserMessage(at=2, text="go on"),
            ContextReset(at=2, reason="long", text="what was before"),
            replied(2, broken, never),
            returned(2, broken, ok=False),
        ):
            written.append(event)
    return written


@pytest.fixture
def laned(tmp_path):
    """Two lanes: in the first the judge is asked and results are shortened, the second's context begins anew."""
    write, again, more = call("write_candidate", "w"), call("write_candidate", "a"), call("write_candidate", "m")
    with Record.create(tmp_path, "laned") as written:
        for event in (
            RunStarted(at=0, run_id="laned", config=config(), prompts_hash="h", messages=BEGINNING),
            replied(1, write, text="first"),
            returned(1, write),
            replied(2, text="use fewer copies").model_copy(
                update={"purpose": "judge", "asked": (Message(role="user", text="what next?"),)}
            ),
            UserMessage(at=2.2, text="a judge says: use fewer copies", topic="judge"),
            ResultsShortened(at=2.3, through=1),
            replied(3, again),
            returned(3, again),
            LaneStarted(at=4, lane=2, text="another way", topic="lane"),
            replied(4, more),
            returned(4, more),
            ContextReset(at=5, reason="long", text="what was before"),
            replied(6, text="done"),
        ):
            written.append(event)
    return written


def chats(record, steps="all"):
    return [json.loads(line) for line in chat_lines(record, schemas(), steps)]


def valid(messages) -> bool:
    """As chat APIs want it: all calls but a last reply's are answered, in their order, and nothing else is."""
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if (
                not open_calls
                or open_calls.pop(0) != message["tool_call_id"]
                or not isinstance(message["content"], str)
            ):
                return False
            continue
        if open_calls:
            return False
        open_calls = [one["id"] for one in message.get("tool_calls", [])]
        if any(
            one["type"] != "function" or set(one["function"]) != {"name", "arguments"}
            for one in message.get("tool_calls", [])
        ):
            return False
    return True


def test_a_context_that_began_anew_is_a_conversation_of_its_own(record) -> None:
    first, second = chats(record)
    assert [m["role"] for m in first["messages"]] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert [m["content"] for m in second["messages"][:3]] == ["be good", "do it", "what was before"]
    assert valid(first["messages"]) and valid(second["messages"])
    assert [one["function"]["name"] for one in second["messages"][3]["tool_calls"]] == ["x"]  # the other was never made
    assert second["messages"][3]["tool_calls"][0]["function"]["arguments"] == "{bad"
    assert first["tools"][0] == {"type": "function", "function": schemas()[0]}
    assert second["metadata"]["conversation"] == 2 and second["metadata"]["outcome"] == "unfinished"


def test_a_lane_is_a_conversation_of_its_own_and_the_judge_is_in_none(laned) -> None:
    first, second, third = chats(laned)
    said = [m["content"] for m in first["messages"]]
    assert said == ["be good", "do it", "first", "result of w", "a judge says: use fewer copies", None, "result of a"]
    assert [m["content"] for m in second["messages"]] == ["be good", "do it", "another way", None, "result of m"]
    texts = [m["content"] for m in third["messages"]]
    assert texts == ["be good", "do it", "another way", "what was before", "done"]
    assert [one["metadata"]["lane"] for one in (first, second, third)] == [1, 2, 2]
    assert [step["step"] for step in first["metadata"]["trajectory"]] == [1, 3]
    assert first["metadata"]["trajectory"][1]["tokens"] == 45  # the judge's are paid, too
    assert all(valid(one["messages"]) for one in (first, second, third))


def test_inspect_shows_the_judge_beside_the_conversation(laned, tmp_path) -> None:
    log_api = pytest.importorskip("inspect_ai.log")
    row = read(laned)
    path = write_log([row], "one", schemas(), tmp_path / "logs")
    (sample,) = log_api.read_eval_log(str(path), resolve_attachments=True).samples
    asked = [event for event in sample.events if event.event == "model"]
    assert len(asked) == row.spend.steps and [event.role for event in asked] == [None, "judge", None, None, None]
    assert [message.text for message in asked[1].input] == ["what next?"] and not asked[1].tools
    assert sum(used.total_tokens for used in sample.model_usage.values()) == row.spend.tokens
    infos = [event.data for event in sample.events if event.event == "info"]
    assert infos == ["a judge says: use fewer copies", "another way", "what was before"]


def test_verdicts_and_speed_ups_stand_beside_the_step_they_came_of(record) -> None:
    (step,) = chats(record)[0]["metadata"]["trajectory"]
    assert (step["step"], step["message"], step["tokens"], step["usd"], step["device_s"]) == (1, 2, 15, 0.5, 4.0)
    assert step["calls"][1]["verdict"] == "passed" and step["calls"][1]["eager"]["low"] == 1.5
    assert step["calls"][1]["device"]["low"] == "Infinity"  # strict JSON
    assert step["calls"][0] == {"tool": "write_candidate", "ok": True}


@pytest.mark.parametrize("name", ["p01-cpu", "p01-cuda"])
def test_recorded_runs_as_chat(name) -> None:
    record = Record.open(EXAMPLES / name)
    run = record.run()
    (whole,) = chats(record)
    assert valid(whole["messages"]) and len(whole["metadata"]["trajectory"]) == run.spend.steps
    verdicts = [one["verdict"] for step in whole["metadata"]["trajectory"] for one in step["calls"] if "verdict" in one]
    assert verdicts == [attempt.verdict for attempt in run.attempts if attempt.verdict]
    (final,) = chats(record, "final")
    assert [m["role"] for m in final["messages"]] == ["system", "user", "assistant"]
    source = json.loads(final["messages"][-1]["tool_calls"][0]["function"]["arguments"])["source"]
    assert source == record.candidate(run.official.candidate).source
    assert final["metadata"]["verdict"] == "passed"
    assert final["metadata"]["eager"]["low"] == run.official.measurement.eager.speedup.low


def test_a_run_without_a_graded_candidate_has_no_final_conversation(record) -> None:
    assert chats(record, "final") == []


def test_inspect_reads_its_log_back(tmp_path) -> None:
    log_api = pytest.importorskip("inspect_ai.log")
    write_set(tmp_path / "set", models=("maker/model",), problems=(1, 13), samples=2, steps=3, seed=2)
    rows = load([tmp_path / "set"]).rows
    path = write_log(rows, "maker/model", schemas(), tmp_path / "logs")
    assert write_log(rows, "maker/model", schemas(), tmp_path / "logs") == path
    assert [info.name for info in log_api.list_eval_logs(str(tmp_path / "logs"))] == [path.as_uri()]
    log = log_api.read_eval_log(str(path), resolve_attachments=True)
    assert log.status == "success" and log.eval.model == "maker/model" and len(log.samples) == 5
    ids = [(sample.id, sample.epoch) for sample in log.samples]
    first, other = "p01_allreduce/pkb", "p13_gemm_allreduce/pkb"
    assert sorted(ids) == [(first, 1), (first, 2), (first, 3), (other, 1), (other, 2)]
    mean = log.results.scores[0].metrics["mean"].value
    assert mean == pytest.approx(sum(row.correct for row in rows if row.outcome == "sample") / 4)
    by_run = {sample.metadata["run_id"]: sample for sample in log.samples}
    for row in rows:
        sample = by_run[row.run_id]
        kinds = [event.event for event in sample.events]
        assert kinds.count("model") == row.spend.steps and kinds.count("score") == row.attempts
        assert sum(used.total_tokens for used in sample.model_usage.values()) == row.spend.tokens
        if row.outcome == "fault":
            assert sample.error.message == row.reason and not sample.scores
            continue
        assert sample.scores["correct"].value == int(row.correct)
        ratio = row.ratio()
        assert sample.scores["speedup"].value == (ratio.value if ratio else 0.0)
        if row.correct:
            assert sample.scores["correct"].answer.startswith(f"# {row.run_id}")
            assert Ratio(**sample.scores["speedup"].metadata) == ratio


def test_inspect_keeps_broken_calls_and_contexts_that_began_anew(record, tmp_path) -> None:
    log_api = pytest.importorskip("inspect_ai.log")
    row = read(record)
    assert row.verdict is not Verdict.passed
    path = write_log([row], "one", schemas(), tmp_path / "logs")
    (sample,) = log_api.read_eval_log(str(path), resolve_attachments=True).samples
    assert [message.text for message in sample.messages][:3] == ["be good", "do it", "what was before"]
    broken = sample.messages[3].tool_calls[0]
    assert broken.arguments == {"raw": "{bad"} and broken.parse_error
    assert sample.messages[4].error.message == "result of x"
    infos = [event for event in sample.events if event.event == "info"]
    assert [event.data for event in infos] == ["go on", "what was before"]
    assert len(talks(record.events())) == 2


def test_the_command_writes_both(tmp_path, capsys) -> None:
    from service.cli import USAGE, main

    assert main(["runs", "export", str(EXAMPLES), "--out", str(tmp_path / "chats.jsonl")]) == 0
    lines = (tmp_path / "chats.jsonl").read_text().splitlines()
    assert [json.loads(line)["metadata"]["verdict"] for line in lines] == ["passed", "passed"]
    assert main(["runs", "export", "p01-cpu", "--runs-dir", str(EXAMPLES), "--steps", "final"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    pytest.importorskip("inspect_ai")
    assert main(["runs", "export", str(EXAMPLES), "--format", "inspect", "--out", str(tmp_path / "logs")]) == 0
    assert len(list((tmp_path / "logs").glob("*.eval"))) == 2
    assert main(["runs", "export", "nothing", "--runs-dir", str(tmp_path)]) == USAGE
