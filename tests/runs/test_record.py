import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import HarnessError, UsageError
from harness.types import Difference, Mismatch, RankReport, Stage
from runs.events import RunFinished, RunStarted, Spend, ToolReturned, UserMessage
from runs.messages import ToolCall
from runs.record import Record, new_run_id
from tests.runs.factories import candidate, config, evaluation

STARTED = RunStarted(at=1.0, run_id="r", config=config(), prompts_hash="h", messages=())
FINISHED = RunFinished(at=9.0, reason="submitted", best=None, official=None, target_met=False, spend=Spend())


def say(text: str) -> UserMessage:
    return UserMessage(at=2.0, text=text)


def test_events_come_back_as_they_were_written(tmp_path: Path) -> None:
    difference = Difference(index=(0,), got=math.nan, expected=math.inf)
    mismatch = Mismatch(
        trial=0,
        output="out",
        shape=(4,),
        wrong=1,
        total=4,
        nonfinite=1,
        max_error=math.inf,
        max_allowed=0.1,
        rms_error=math.inf,
        rms_allowed=0.1,
        first=(difference,),
    )
    rank = RankReport(rank=0, ok=False, stage=Stage.correctness, mismatches=(mismatch,))
    failed = evaluation().model_copy(update={"ranks": (rank,)})
    call = ToolCall(id="1", name="run_benchmark", arguments="{}")
    event = ToolReturned(at=2.0, step=1, call=call, ok=True, text="two\nlines  ü", seconds=1.0, evaluation=failed)
    with Record.create(tmp_path, "r") as record:
        record.append(STARTED)
        record.append(event)
    started, returned = Record.open(tmp_path / "r").events()
    assert started == STARTED
    assert isinstance(returned, ToolReturned) and returned.evaluation
    assert returned.text == event.text
    got = returned.evaluation.ranks[0].mismatches[0]
    assert math.isnan(got.first[0].got) and got.max_error == math.inf


def test_a_lone_surrogate_does_not_stop_the_record(tmp_path: Path) -> None:
    with Record.create(tmp_path, "r") as record:
        record.append(say("half \ud83d an emoji"))
    assert list(record.events()) == [say("half ? an emoji")]


def test_append_is_synced_before_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bytes] = []
    fsync = os.fsync

    def spy(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(os.pread(descriptor, 1 << 20, 0))

    monkeypatch.setattr(os, "fsync", spy)
    with Record.create(tmp_path, "r") as record:
        record.append(say("a"))
        record.append(say("b"))
    assert [content.count(b"\n") for content in synced] == [1, 2]


def test_a_torn_last_line_is_left_out_and_cut_off(tmp_path: Path) -> None:
    with Record.create(tmp_path, "r") as record:
        record.append(STARTED)
    path = tmp_path / "r" / "events.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind": "user_mess')
    reopened = Record.open(tmp_path / "r")
    assert list(reopened.events()) == [STARTED]
    with reopened:
        reopened.append(FINISHED)
    assert list(reopened.events()) == [STARTED, FINISHED]
    assert path.read_bytes().startswith(whole + b'{"at"')


def test_a_killed_writer_leaves_whole_events_and_no_lock(tmp_path: Path) -> None:
    writer = (
        "import os, signal, sys; from pathlib import Path; from runs.record import Record\n"
        "from runs.events import UserMessage\n"
        "record = Record.create(Path(sys.argv[1]), 'r')\n"
        "record.append(UserMessage(at=1.0, text='kept'))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", writer, str(tmp_path)], check=False, cwd=Path(__file__).parents[2])
    record = Record.open(tmp_path / "r")
    assert not record.is_being_written()
    with record:
        record.append(say("after"))
    assert [event.text for event in record.events() if isinstance(event, UserMessage)] == ["kept", "after"]


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Record.create(tmp_path, "r") as record:
        record.append(say("a"))
        write = os.write
        answers = iter([5])

        def full(descriptor: int, data: bytes) -> int:
            for count in answers:
                return write(descriptor, data[:count])
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(HarnessError, match="No space left"):
            record.append(say("b"))
        monkeypatch.undo()
        record.append(say("c"))
    assert list(record.events()) == [say("a"), say("c")]


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with Record.create(tmp_path, "r") as record:
        record.append(STARTED)
        other = Record.open(tmp_path / "r")
        assert other.is_being_written()
        assert other.run().status == "running"
        with pytest.raises(UsageError, match="being written by another process"):
            other.append(say("intruder"))
    assert other.run().status == "interrupted"


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    with Record.create(tmp_path, "r") as record:
        record.append(STARTED)
    with (tmp_path / "r" / "events.jsonl").open("a") as file:
        file.write('{"kind": "user_message", "at": 1.0}\n')
    with pytest.raises(UsageError, match=r"events.jsonl, line 2: not an event \(user_message.text: Field required\)"):
        list(record.events())


@pytest.mark.parametrize("padding", [0, 1 << 17])
def test_first_and_last_event_are_read_alone(tmp_path: Path, padding: int) -> None:
    with Record.create(tmp_path, "r") as record:
        record.append(STARTED)
        assert record.finished() is None
        record.append(FINISHED.model_copy(update={"reason": "error: " + "x" * padding}))
    path = tmp_path / "r" / "events.jsonl"
    first, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + b"not json\n" + last + b'{"torn')
    assert record.started() == STARTED
    finished = record.finished()
    assert finished and len(finished.reason) == len("error: ") + padding


def test_candidates_are_kept_by_content(tmp_path: Path) -> None:
    odd = candidate("# é\r\ndef solution(x):\r\n    return x\n\n")
    with Record.create(tmp_path, "r") as record:
        record.append(STARTED)
        record.save_candidate(odd)
        record.save_candidate(odd)
    assert [path.name for path in (tmp_path / "r" / "candidates").iterdir()] == [f"{odd.hash}.py"]
    assert Record.open(tmp_path / "r").candidate(odd.hash) == odd
    with pytest.raises(UsageError, match="no candidate beef"):
        record.candidate("beef")
    (tmp_path / "r" / "candidates" / "beef.py").write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"beef\.py is not UTF-8 text"):
        record.candidate("beef")


def test_list_is_newest_first(tmp_path: Path) -> None:
    for run_id in ("20250101-000000-p01-a-0000", "20260101-000000-p01-a-0000", "20251231-000000-p01-a-0000"):
        with Record.create(tmp_path, run_id) as record:
            record.append(STARTED)
    (tmp_path / "not-a-run").mkdir()
    assert [record.run_id[:8] for record in Record.list(tmp_path)] == ["20260101", "20251231", "20250101"]
    assert list(Record.list(tmp_path / "absent")) == []


def test_run_ids(tmp_path: Path) -> None:
    assert re.fullmatch(r"\d{8}-\d{6}-p13-gemm-allreduce-[0-9a-f]{4}", new_run_id(13, "gemm_allreduce"))
    Record.create(tmp_path, "r")
    with pytest.raises(UsageError, match="already exists"):
        Record.create(tmp_path, "r")
    with pytest.raises(UsageError, match="is not a run"):
        Record.open(tmp_path / "r")
