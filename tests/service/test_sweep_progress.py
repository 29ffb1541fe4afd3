"""What a person sees of a sweep."""

import io
from pathlib import Path

from rich.console import Console

from runs.events import Budget, RunConfig
from runs.sweep import CellEnded, CellStarted, Plan, SweepEnded, SweepStarted, wall_s
from runs.sweep_record import SweepRecord
from service.estimate import estimate
from service.sweep_progress import SweepProgress, plan_text, progress_line, summary
from service.tally import Tally


def grid(**changed) -> Plan:
    fields = {"case": "tiny", "platform": "cpu", "world_size": 2, "dtype": "float32", "backend": "cpp"}
    configs = [
        RunConfig(problem=problem, model=model, sample=sample, **{**fields, **changed})
        for problem in (1, 2)
        for model in ("openai/gpt-5", "lab/[bold]un\x1bknown")
        for sample in (1, 2)
    ]
    return Plan.make(configs, "s", "0" * 16, "0.1.0")


def console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, markup=False, highlight=False, width=150)


def begun(folder: Path, plan: Plan) -> Tally:
    record = SweepRecord(folder)
    with record:
        record.open_to_write()
        record.lock_plan(plan)
    return Tally(plan, record)


def test_cells_are_counted_as_they_go(tmp_path: Path) -> None:
    plan = grid()
    tally = begun(tmp_path / "s", plan)
    first, second, third, *_ = plan.cells()
    assert tally.eta_s is None and tally.left == 8
    tally.running(first)
    tally.over(second, "submitted", None)
    tally.over(third, "error: harness: x", None)
    assert (tally.count("waiting"), tally.count("running"), tally.count("unsolved"), tally.count("failed")) == (
        5, 1, 1, 1,
    )  # fmt: skip
    assert tally.left == 7 and tally.eta_s is not None
    line = progress_line(tally)
    assert line.startswith("1 of 8 cells ended, 0 solved, 1 running, 1 failed for no fault of the model's")
    text = summary(plan, tally, "drained")
    assert "sweep s: drained" in text and "\x1b" not in text
    assert summary(plan, tally, "cap: device_s").startswith("sweep s: cap: device_s (--sweep-gpu-hours)\n")


def test_a_live_table_on_a_terminal_and_lines_elsewhere(tmp_path: Path) -> None:
    plan = grid()
    tally = begun(tmp_path / "s", plan)
    cell = plan.cells()[0]
    for terminal in (False, True):
        shown = console(terminal)
        progress = SweepProgress(shown, plan)
        progress.started(cell, "run-1", 2, True)
        progress._shown = -1000.0
        progress.tick(tally)
        progress.ended(cell, "submitted", None)
        progress.close()
        said = shown.file.getvalue()
        assert "p01 openai/gpt-5 #1: goes on as run-1, attempt 2" in said and "no correct candidate" in said
        assert ("unsolved" in said) is terminal and "0 of 8 cells ended" in said


def test_what_a_sweep_will_use_says_where_it_comes_from(tmp_path: Path) -> None:
    forecast = estimate(grid(), tmp_path)
    known, unknown = forecast.models
    assert (forecast.cells, known.cells, known.tokens) == (8, 4, 4 * 20 * 19_000)
    assert known.usd is not None and known.usd > 0 and unknown.usd is None and forecast.usd is None
    assert "assumed: 20 replies" in known.basis and forecast.gpu_hours > 0
    text = plan_text(grid(), forecast)
    assert "2 problems x 2 models x 2 samples = 8 runs" in text and "unknown" in text and "\x1b" not in text
    single = estimate(grid(strategy="single"), tmp_path).models[0]
    assert single.tokens == known.tokens / 20
    capped = estimate(grid(budget=Budget(usd=0.01, tokens=10**9)), tmp_path).models[0]
    assert capped.usd == 0.04 and capped.tokens < known.tokens
    short = estimate(grid(budget=Budget(tokens=1000, device_s=1.0)), tmp_path)
    assert short.models[0].tokens == 4000 and short.gpu_hours == 8 / 3600


def test_time_between_processes_is_not_counted() -> None:
    cell = grid().cells()[0]
    started = {"pid": 1, "engine": "local", "harness": "0", "prompts_hash": "0", "cells": 1}
    events = [
        SweepStarted(at=100.0, **started),
        CellStarted(at=101.0, cell=cell, run_id="r", attempt=1),  # killed at some time after this
        SweepStarted(at=500.0, **started),
        CellEnded(at=510.0, cell=cell, run_id="r", reason="submitted"),
        SweepEnded(at=511.0, reason="done"),
    ]
    assert wall_s(events) == 12.0
