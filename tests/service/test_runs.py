"""`ringsmith runs` over real record files: which are found, what is said of them, and of those that are damaged."""

import csv
import io
import json
import random
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from runs.events import RunStarted
from runs.record import Record
from runs.sweep import Cell, CellEnded, CellStarted, Plan
from runs.sweep_record import sweep_record
from service.cli import USAGE, main
from tests.runs.factories import config
from tests.runs.record_sets import write_run, write_set
from tests.service.conftest import GOOD


@pytest.fixture
def ringsmith(capsys):
    def call(*arguments: object) -> SimpleNamespace:
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return call


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """A folder with three records of four steps; each writes a candidate and measures it."""
    write_set(tmp_path / "r", models=("maker/good",), problems=(1,), samples=3, steps=4, faults=0)
    return tmp_path / "r"


def empty(record: Path) -> Path:
    file = record / "events.jsonl"
    file.write_text("")
    return file


def beheaded(record: Path) -> Path:
    """Without its first event."""
    file = record / "events.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))
    return file


def garbled(record: Path) -> Path:
    """The second line is no event."""
    file = record / "events.jsonl"
    first, _, *others = file.read_text().splitlines(keepends=True)
    file.write_text("".join([first, "{}\n", *others]))
    return file


def test_attempts_are_those_of_the_report(ringsmith, records) -> None:
    report = ringsmith("report", records, "--format", "csv").out
    reported = {line["run"]: line["attempts"] for line in csv.DictReader(io.StringIO(report))}
    assert set(reported.values()) == {"4"}
    listed = [json.loads(line) for line in ringsmith("runs", "list", "--runs-dir", records, "--json").out.splitlines()]
    assert {line["run_id"]: str(line["attempts"]) for line in listed} == reported
    lines = [re.split(" {2,}", line) for line in ringsmith("runs", "list", "--runs-dir", records).out.splitlines()]
    assert {line[0]: line[lines[0].index("ATTEMPTS")] for line in lines[1:]} == reported


@pytest.mark.parametrize("damage", [empty, beheaded, garbled])
def test_errors_name_the_record_that_cannot_be_read(ringsmith, records, damage) -> None:
    file = damage(records / "0-p01-1")
    listed = ringsmith("runs", "list", "--runs-dir", records)
    assert listed.code == 0 and [line.split()[0] for line in listed.out.splitlines()[1:]] == ["0-p01-2", "0-p01-0"]
    assert listed.err.startswith(f"warning: {file}") and len(listed.err.splitlines()) == 1
    shown = ringsmith("runs", "show", "0-p01-1", "--runs-dir", records)
    assert shown.code == USAGE and shown.err.startswith(f"error: {file}")


def test_runs_of_sweeps_are_found_by_their_ids_and_listed_by_themselves(ringsmith, records) -> None:
    for name, said in (("first", "also 1 sweep (first)"), ("s2", "also 2 sweeps (first, s2)")):
        sweep = sweep_record(records, name)
        write_run(sweep.runs, f"of-{name}", "m", 13, 1.0, 2, 200, random.Random(0))
        sweep.lock_plan(Plan.make([config(problem=13)], name, "h", "0"))
        (sweep.path / "events.jsonl").write_text("")
        place = sweep.runs if name == "first" else records / "sweeps" / "NAME" / "runs"
        listed = ringsmith("runs", "list", "--runs-dir", records)
        assert len(listed.out.splitlines()) == 4 and "of-" not in listed.out
        assert listed.err == f"{said}: ringsmith runs list --runs-dir {place}\n"
    of_sweep = ringsmith("runs", "list", "--runs-dir", sweep.runs)
    assert "of-s2" in of_sweep.out and of_sweep.err == ""
    assert "warning" not in ringsmith("runs", "list", "--runs-dir", records / "sweeps").err

    def runs(command: str, run: str, *more: str) -> SimpleNamespace:
        return ringsmith("runs", command, run, *more, "--runs-dir", records)

    for name in ("first", "s2"):
        assert f"record: {records / 'sweeps' / name / 'runs' / f'of-{name}'}\n" in runs("show", f"of-{name}").out
    assert len(runs("export", "of-s2").out.splitlines()) == 1
    assert "run 0-p01-2: " in runs("show", "latest").out
    assert runs("hint", "of-s2", "Fuse.").err.startswith("error: run of-s2 has ended")
    file = sweep.runs / "of-s2" / "events.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    assert runs("hint", "of-s2", "Fuse.").code == 0 and len(list((file.parent / "control").iterdir())) == 1
    for unknown in ("of-s3", "../of-s2"):
        assert runs("show", unknown).code == USAGE and "error: no run '" in runs("show", unknown).err


@pytest.mark.parametrize("form", ["chat-jsonl", "html"])
@pytest.mark.parametrize("damage", [empty, beheaded, garbled])
def test_exports_leave_out_what_cannot_be_read(ringsmith, records, tmp_path, form, damage) -> None:
    out = tmp_path / "out"
    export = ["--format", form, "--runs-dir", records, "--out", out]
    file = damage(records / "0-p01-1")
    done = ringsmith("runs", "export", records, *export)
    warning, *others = done.err.splitlines()
    assert done.code == 0 and warning.startswith(f"warning: {file.parent}") and "warning" not in "".join(others)
    if form == "html":
        assert {page.name for page in out.iterdir()} == {"0-p01-0.html", "0-p01-2.html"}
    else:
        made = [json.loads(line)["metadata"]["run_id"] for line in out.read_text().splitlines()]
        assert set(made) == {"0-p01-0", "0-p01-2"}

    alone = ringsmith("runs", "export", "0-p01-1", *export)
    assert alone.code == USAGE and alone.err.startswith(f"error: no run can be read: {file.parent}")
    for other in ("0-p01-0", "0-p01-2"):
        damage(records / other)
    none = ringsmith("runs", "export", records, *export)
    assert none.code == USAGE and none.err.count("warning: ") == 3 and none.err.count("error: no run can be read") == 1


def test_regrade_leaves_out_what_cannot_be_read(ringsmith, events, tmp_path) -> None:
    """The candidate that the record calls right returns what it is given: that is found out in spite of the others."""
    sweep = sweep_record(tmp_path, "s")
    names, damages = ("a", "b", "c", "lost", "good"), (empty, beheaded, garbled)
    for name in names:
        with Record.create(sweep.runs, name) as record:
            for event in events:
                record.append(event.model_copy(update={"run_id": name}) if isinstance(event, RunStarted) else event)
            if name != "lost":
                record.save_candidate(GOOD)
    said = [f"warning: {damage(sweep.runs / name)}" for name, damage in zip(names, damages, strict=False)]
    said.append("warning: run lost has no candidate")
    with sweep:
        sweep.open_to_write()
        sweep.lock_plan(Plan.make([config()], "s", "h", "0"))
        for sample, name in enumerate(names, start=1):
            cell = Cell(problem=1, model="m", sample=sample)
            sweep.append(CellStarted(at=1.0, cell=cell, run_id=name, attempt=1))
            sweep.append(CellEnded(at=2.0, cell=cell, run_id=name, reason="submitted"))

    def warned(err: str) -> list[str]:
        lines = sorted(line for line in err.splitlines() if line.startswith("warning: "))
        assert all(line.startswith(start) for line, start in zip(lines, said, strict=True))
        return lines

    folder = ringsmith("regrade", sweep.runs)
    assert folder.code == 1 and folder.out.startswith("good: wrong_values; ") and len(folder.out.splitlines()) == 1
    again = ringsmith("regrade", "s", "--runs-dir", tmp_path)
    assert again.code == 0 and "good: regraded so before" in again.err and warned(again.err) == warned(folder.err)

    for name in names[:-1]:
        alone = ringsmith("regrade", sweep.runs / name)
        assert alone.code == USAGE and alone.err.startswith("error: no run can be read: ")
    garbled(sweep.runs / "good")
    for target in (sweep.runs, sweep.path):
        none = ringsmith("regrade", target)
        assert none.code == USAGE and none.err.count("warning: ") == 5 and "error: no run can be read" in none.err
