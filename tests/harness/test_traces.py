"""Traces of all ranks in one file."""

import json
import os
import weakref

import pytest

from harness.traces import _MAX_VALUES, LargeTraceError, merge_traces, read_trace


def part(path, events):
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def test_tracks_and_flows_of_ranks_stay_apart(tmp_path):
    one_rank = [
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "process_name", "pid": "Spans", "tid": 0, "args": {"name": "spans"}},
        {"ph": "X", "name": "kernel", "pid": 0, "tid": 7, "ts": 1.0, "dur": 2.0, "args": {"stream": 7}},
        {"ph": "s", "id": 3, "name": "ac2g", "pid": 0, "tid": 1, "ts": 1.0},
        {"ph": "f", "id": 3, "name": "ac2g", "pid": 0, "tid": 7, "ts": 2.0},
        {"ph": "i", "name": "Record Window End", "ts": 5.0},
    ]
    parts = [part(tmp_path / f"trace.{rank}.json", one_rank) for rank in range(2)]
    merged = tmp_path / "merged.json"
    merged.write_text(merge_traces([read_trace(part) for part in parts]))
    events = json.loads(merged.read_text())["traceEvents"]
    assert len(events) == 12

    names = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    assert set(names) == {f"rank {r}: {n}" for r in range(2) for n in ("python", "spans")}
    assert len(set(names.values())) == 4 and all(isinstance(pid, int) for pid in names.values())

    kernels = [e for e in events if e["name"] == "kernel"]
    assert [e["pid"] for e in kernels] == [names["rank 0: python"], names["rank 1: python"]]
    assert kernels[0] | {"pid": 0} == one_rank[2]

    flows = [e["id"] for e in events if "id" in e]
    assert flows[0] == flows[1] != flows[2] == flows[3]


def test_ranks_without_events(tmp_path):
    parts = [part(tmp_path / "a.json", []), part(tmp_path / "b.json", [{"ph": "X", "name": "k", "pid": 1}])]
    assert [e["name"] for e in json.loads(merge_traces([read_trace(part) for part in parts]))["traceEvents"]] == ["k"]


def test_only_regular_files_are_traces(tmp_path):
    target, link, pipe = tmp_path / "secret.json", tmp_path / "link.json", tmp_path / "pipe.json"
    target.write_text('{"traceEvents": []}')
    link.symlink_to(target)
    os.mkfifo(pipe)
    assert read_trace(target) == []
    for part in (link, pipe, tmp_path):
        with pytest.raises((OSError, ValueError)):
            read_trace(part)


BAD = {
    "no JSON": "{", "no object": "3", "no events": "{}", "events that are none": '{"traceEvents": [1]}',
    "an object of events": '{"traceEvents": {"ph": "X"}}', "no text": "\udc80",
    "deep": '{"traceEvents": ' + "[" * 10**5,
    "NaN": '{"traceEvents": [{"ts": NaN}]}', "a huge whole number": '{"traceEvents": [{"ts": ' + "9" * 5000 + "}]}",
}  # fmt: skip


@pytest.mark.parametrize("text", BAD.values(), ids=list(BAD))
def test_what_is_no_trace_is_refused(text, tmp_path):
    (tmp_path / "t.json").write_text(text, errors="surrogateescape")
    with pytest.raises((ValueError, LookupError, TypeError, RecursionError)):
        read_trace(tmp_path / "t.json")


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    with (tmp_path / "t.json").open("wb") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(LargeTraceError, match="MB"):
        read_trace(tmp_path / "t.json")


@pytest.mark.parametrize("value", ["{}", "[]", "1", '{"a":1}'])
def test_short_values_take_no_more_memory_than_long_ones(value, tmp_path):
    """24 MB of `{}` took 2.7 GB."""
    count = _MAX_VALUES // 2 if ":" in value else _MAX_VALUES
    (tmp_path / "t.json").write_text(f'{{"traceEvents": [{",".join([value] * count)}]}}')
    with pytest.raises(LargeTraceError, match="values"):
        read_trace(tmp_path / "t.json")


def test_events_of_one_rank_are_kept_at_a_time():
    class Events(list):
        pass

    kept = []

    def ranks():
        for _ in range(3):
            events = Events([{"ph": "X"}])
            assert all(reference() is None for reference in kept)
            kept.append(weakref.ref(events))
            yield events
            del events

    assert len(json.loads(merge_traces(ranks()))["traceEvents"]) == 3


def test_a_merged_trace_is_strict_json(tmp_path):
    with pytest.raises(ValueError):
        merge_traces([read_trace(part(tmp_path / "t.json", [{"ts": 1}])), [{"ts": json.loads("1e999")}]])
