"""No measured time has ever beaten its floor: every measurement in this repository, by the floor that was written down
with it and by the one that today's formulas give."""

import json
from pathlib import Path

import pytest

from harness import roofline
from harness.types import Evaluation
from problems import catalogue
from problems.spec import Case
from runs.record import Record

ROOT = Path(__file__).resolve().parents[2]
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
RESULTS = sorted((ROOT / "docs" / "results").glob("*.jsonl"))
RUNS = sorted(path.parent for path in (ROOT / "runs" / "examples").glob("*/events.jsonl"))


def measured(path: Path) -> list[Evaluation]:
    if path.is_dir():
        events = Record.open(path).events()
        found = [getattr(event, field, None) for event in events for field in ("evaluation", "official")]
    else:
        found = [
            Evaluation.model_validate(line)
            for line in map(json.loads, path.read_text().splitlines())
            if "measurement" in line
        ]
    return [evaluation for evaluation in found if evaluation is not None and evaluation.measurement is not None]


def fastest_us(evaluation: Evaluation) -> float:
    measurement = evaluation.measurement
    timings = [timing for timing in (measurement.eager, measurement.device) if timing]
    sides = [side for timing in timings for side in (timing.candidate, timing.reference)]
    # Calls back to back are not aligned: what a fast rank does early in one shortens another's next. Their mean counts.
    return min(side.min_us if measurement.protocol == "ringsmith" else side.median_us for side in sides)


def floor_now_us(evaluation: Evaluation) -> float | None:
    problem, case = catalogue.load(evaluation.problem), Case(evaluation.case, evaluation.sizes)
    work = problem.work(case, evaluation.world_size, BYTES[evaluation.dtype])
    found = roofline.floor(work, evaluation.environment.devices[0], evaluation.dtype)
    return found[0] if found else None


@pytest.mark.parametrize("path", RESULTS + RUNS, ids=lambda path: path.name)
def test_no_recorded_time_beats_its_floor(path):
    evaluations = measured(path)
    assert evaluations
    for evaluation in evaluations:
        floors = (evaluation.measurement.sol_us, floor_now_us(evaluation))
        if evaluation.environment.platform == "cuda":
            assert all(floors)
        for floor_us in filter(None, floors):
            assert fastest_us(evaluation) >= floor_us, f"{evaluation.name}, case {evaluation.case}"
