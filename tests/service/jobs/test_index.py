"""The index of runs against the records themselves."""

import shutil
from pathlib import Path

import pytest

from runs.record import Record
from service.jobs.index import Filter, RunsIndex
from service.jobs.tail import Tails
from tests.runs.record_sets import write_set


@pytest.fixture
def index(store, tmp_path: Path) -> RunsIndex:
    root = tmp_path / "runs"
    write_set(root, steps=4)
    write_set(root / "sweeps" / "one" / "runs", samples=1, faults=0, seed=1)
    index = RunsIndex(root, store, Tails())
    index.refresh()
    return index


def test_a_row_says_what_the_record_says(index, tmp_path):
    rows, total = index.list(Filter(), limit=500)
    records = {r.path.relative_to(tmp_path / "runs").as_posix(): r.run() for r in Record.list(tmp_path / "runs")}
    assert total == len(rows) == len(records) + 6
    assert [row.started_at for row in rows] == sorted((row.started_at for row in rows), reverse=True)
    for row in rows:
        if row.sweep:
            assert row.path.startswith("sweeps/one/runs/")
            continue
        run = records[row.path]
        assert (row.state, row.reason, row.model) == (run.status, run.reason, run.config.model)
        assert (row.steps, row.attempts, row.usd) == (run.spend.steps, run.evaluated, run.spend.usd)
        assert row.verdict == (run.official.verdict if run.official else row.verdict)
        assert (row.speedup is not None) == (run.best is not None)


def test_filters_sorts_and_pages(index):
    whole, total = index.list(Filter(), limit=500)
    pages = [row.path for offset in range(0, total, 5) for row in index.list(Filter(), limit=5, offset=offset)[0]]
    assert pages == [row.path for row in whole]
    for wanted, same in (
        (Filter(problem=13), lambda row: row.problem == 13),
        (Filter(model="maker/large"), lambda row: row.model == "maker/large"),
        (Filter(sweep="one"), lambda row: row.sweep == "one"),
        (Filter(sweep=""), lambda row: not row.sweep),
        (Filter(verdict="passed"), lambda row: row.verdict == "passed"),
        (Filter(text="SMALL"), lambda row: row.model == "maker/small"),
        (Filter(text="%"), lambda row: False),
        (Filter(text="fault", state="finished"), lambda row: "fault" in row.run_id),
    ):
        rows, count = index.list(wanted, limit=500)
        assert [row.path for row in rows] == [row.path for row in whole if same(row)] and count == len(rows)
    by_speed, _ = index.list(Filter(), limit=500, sort="speedup")
    assert [row.speedup or -1 for row in by_speed] == sorted((row.speedup or -1 for row in whole), reverse=True)


def test_only_what_has_changed_is_read_again(index, tmp_path):
    assert index.refresh() == 0
    record = Record(tmp_path / "runs" / "0-p01-0")
    shutil.rmtree(tmp_path / "runs" / "0-p01-1")
    finished = record.finished()
    assert finished is not None
    with record:
        record.append(finished.model_copy(update={"reason": "submitted"}))
        assert index.refresh() == 1
    assert index.find("0-p01-0").reason == "submitted" and index.find("0-p01-1") is None


def test_a_run_whose_process_ends_without_a_word(index, tmp_path):
    record = Record(tmp_path / "runs" / "new")
    record.path.mkdir()
    started = Record(tmp_path / "runs" / "0-p01-0").started()
    record.append(started)
    index.refresh()
    assert index.find("new").state == "running"
    record.close()
    index.refresh()
    assert index.find("new").state == "interrupted"


def test_what_cannot_be_read_is_listed_so(index, tmp_path):
    folder = tmp_path / "runs" / "broken"
    folder.mkdir()
    (folder / "events.jsonl").write_text("no event\n")
    index.refresh()
    assert index.find("broken").state == "unreadable" and "line 1" in index.find("broken").reason
    assert index.refresh() == 0
