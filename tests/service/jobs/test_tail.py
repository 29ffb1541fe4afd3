"""The lines of a record while it is being written."""

import json
from pathlib import Path

import pytest

from harness.errors import UsageError
from runs.record import Record
from service.jobs.tail import Tail, Tails


def test_whole_lines_only_whoever_writes_them(tmp_path: Path, events):
    tail = Tail(tmp_path / "run")
    assert not tail.catch_up() and len(tail) == 0 and tail.lines(0) == [] and tail.folding() is None
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "events.jsonl"
    lines = [json.dumps(event.model_dump(mode="json")).encode() for event in events]
    path.write_bytes(lines[0] + b"\n" + lines[1][:10])
    assert tail.catch_up() and len(tail) == 1
    assert not tail.catch_up()
    path.write_bytes(b"\n".join(lines[:2]) + b"\n")
    assert tail.catch_up() and tail.lines(0) == lines[:2] and tail.lines(1) == lines[1:2] and tail.lines(2) == []
    assert tail.run().spend.steps == 1


def test_a_torn_line_that_the_next_writer_cuts_off(tmp_path: Path, events):
    path = tmp_path / "run"
    path.mkdir()
    with Record(path) as record:
        record.append(events[0])
    with (path / "events.jsonl").open("ab") as file:
        file.write(b'{"kind": "model_re')
    tail = Tail(path)
    tail.catch_up()
    assert len(tail) == 1
    with Record(path) as record:
        for event in events[1:]:
            record.append(event)
    tail.catch_up()
    assert [json.loads(line)["kind"] for line in tail.lines(0)] == [event.kind for event in events]
    assert tail.run() == Record(path).run() and tail.has_final_end()


def test_a_page_is_bounded_by_count_and_by_bytes(tmp_path: Path):
    lines = [b"x" * 100 for _ in range(50)]
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    tail = Tail(tmp_path)
    tail.catch_up()
    assert len(tail.lines(0, most=7)) == 7
    assert len(tail.lines(0, most_bytes=350)) == 3
    assert len(tail.lines(0, most_bytes=5)) == 1
    assert len(tail.lines(48)) == 2 and tail.lines(10**9) == []


def test_another_file_in_its_place(tmp_path: Path, events):
    path = tmp_path / "events.jsonl"
    text = [json.dumps(event.model_dump(mode="json")) for event in events]
    path.write_text("\n".join(text) + "\n")
    tail = Tail(tmp_path)
    assert tail.folding().spend.steps == 3
    path.write_text(text[0] + "\n")
    assert tail.folding().spend.steps == 0 and len(tail) == 1


def test_what_is_no_event_is_named(tmp_path: Path):
    (tmp_path / "events.jsonl").write_text('{"kind": "nothing"}\n')
    with pytest.raises(UsageError, match="line 1"):
        Tail(tmp_path).folding()


def test_few_tails_are_kept(tmp_path: Path):
    tails = Tails(most=2)
    first = tails.get(tmp_path / "a")
    assert tails.get(tmp_path / "a") is first
    for name in ("b", "c"):
        tails.get(tmp_path / name)
    assert tails.get(tmp_path / "a") is not first
