"""Traces of all ranks in one file."""

import json
import os

import pytest

from harness.traces import merge_traces


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
    merged.write_text(merge_traces(parts))
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
    assert [e["name"] for e in json.loads(merge_traces(parts))["traceEvents"]] == ["k"]


def test_only_regular_files_are_traces(tmp_path):
    target, link, pipe = tmp_path / "secret.json", tmp_path / "link.json", tmp_path / "pipe.json"
    target.write_text('{"traceEvents": []}')
    link.symlink_to(target)
    os.mkfifo(pipe)
    assert merge_traces([target])
    for part in (link, pipe, tmp_path):
        with pytest.raises((OSError, ValueError)):
            merge_traces([part])
