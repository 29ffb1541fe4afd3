import json
from pathlib import Path

import pytest

from agent.models import make
from agent.models.replay import REPLAY_END, Replay
from harness.errors import UsageError
from runs.events import ModelReplied, RunStarted, UserMessage
from runs.messages import ToolCall, Turn, Usage
from runs.record import Record
from tests.runs.factories import config

TOOLS = [{"name": "write_candidate", "description": "", "parameters": {}}]


def test_turns_in_order_then_the_end(tmp_path: Path) -> None:
    path = tmp_path / "trajectory.jsonl"
    path.write_text(
        '{"text": "first", "tool_calls": [{"name": "write_candidate", "arguments": {"source": "x\\u2028é"}},'
        ' {"name": "compile", "arguments": "{broken"}]}\n\n'
        '{"tool_calls": [{"name": "submit"}]}\n'
        '{"text": "done"}'
    )
    model = make(f"replay:{path}")
    assert (model.name, model.priced()) == (f"replay:{path}", True)
    first, second, third, end, again = (model.reply([], TOOLS) for _ in range(5))
    assert first.text == "first"
    assert json.loads(first.tool_calls[0].arguments) == {"source": "x\u2028é"}
    assert first.tool_calls[1].arguments == "{broken"
    assert second.tool_calls[0].name == "submit"
    assert len({call.id for turn in (first, second) for call in turn.tool_calls}) == 3
    assert (third.text, third.tool_calls) == ("done", ())
    assert end == again == Turn(stop=REPLAY_END, cost_usd=0.0)


def test_a_recorded_run_replays_for_free(tmp_path: Path) -> None:
    call = ToolCall(id="abc", name="compile", arguments="{}")
    usage = Usage(input_tokens=5)
    turn = Turn(text="hm", tool_calls=(call,), usage=usage, cost_usd=1.0, waited_s=9.0, stop="tool_calls", raw={"a": 1})
    with Record.create(tmp_path, "r") as record:
        record.append(RunStarted(at=1.0, run_id="r", config=config(), prompts_hash="h", messages=()))
        record.append(ModelReplied(at=2.0, step=1, turn=turn, seconds=1.0))
        record.append(UserMessage(at=3.0, text="go on"))
    for path in (tmp_path / "r", tmp_path / "r" / "events.jsonl"):
        model = Replay(path)
        assert model.reply([], TOOLS) == Turn(text="hm", tool_calls=(call,), cost_usd=0.0, stop="tool_calls")
        assert model.reply([], TOOLS).stop == REPLAY_END


def test_the_judge_is_replayed_where_it_is_asked(tmp_path: Path) -> None:
    said = [("a", ""), ("look here", "judge"), ("b", ""), ("and there", "judge")]
    with Record.create(tmp_path, "r") as record:
        record.append(RunStarted(at=1.0, run_id="r", config=config(), prompts_hash="h", messages=()))
        for step, (text, purpose) in enumerate(said, 1):
            record.append(ModelReplied(at=2.0, step=step, turn=Turn(text=text), seconds=1.0, purpose=purpose))
    model = Replay(tmp_path / "r")
    assert [model.reply([], tools).text for tools in (TOOLS, TOOLS, [], TOOLS)] == ["a", "b", "look here", ""]
    assert [model.reply([], []).text for _ in range(2)] == ["and there", ""]
    model = Replay(tmp_path / "r")
    model.skip(1, 1)
    assert [model.reply([], tools).text for tools in ([], TOOLS)] == ["and there", "b"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("not json", "Invalid JSON"),
        ("[]", "should be an object"),
        ('{"text": 3}', "text: Input should be a valid string"),
        ('{"tool_calls": [{"arguments": {}}]}', "tool_calls.0.name: Field required"),
        ('{"tool_calls": [{"name": "compile", "arguments": 3}]}', "tool_calls.0.arguments"),
        ('{"txt": "typo"}', "txt: Extra inputs are not permitted"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "trajectory.jsonl"
    path.write_text(f'{{"text": "fine"}}\n{line}\n')
    with pytest.raises(UsageError) as caught:
        Replay(path)
    assert str(caught.value).startswith(f"{path}, line 2: ")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_read_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the trajectory"):
        Replay(tmp_path / "absent.jsonl")
    with pytest.raises(UsageError, match="is not a run"):
        Replay(tmp_path)
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot read the trajectory"):
        Replay(tmp_path / "binary.jsonl")
