import json
import random

import pytest

from harness.errors import UsageError
from harness.types import Ratio, Verdict
from runs.events import ModelReplied, PersonActed, RunFinished, RunStarted, Spend, ToolReturned
from runs.loading import load, planned, read
from runs.messages import ToolCall, Turn, Usage
from runs.record import Record
from runs.rows import MODES, Progress, Success
from runs.sweep import Plan
from tests.runs.factories import candidate, config, evaluation, measurement
from tests.runs.record_sets import write_run, write_set

A, B = candidate("a"), candidate("b")


def record(root, run_id, *evaluations, reason="submitted", official=None, finish=True, at=0.0, **changed):
    """A run in which these were evaluated, one a step of 100 tokens, 0.5 USD and 2 device-seconds."""
    with Record.create(root, run_id) as written:
        written.append(RunStarted(at=at, run_id=run_id, config=config(**changed), prompts_hash="h", messages=()))
        for step, evaluated in enumerate(evaluations, start=1):
            turn = Turn(usage=Usage(input_tokens=60, output_tokens=40), cost_usd=0.5)
            written.append(ModelReplied(at=at + 10 * step, step=step, turn=turn, seconds=1.0))
            call = ToolCall(id="1", name="run_benchmark", arguments="{}")
            written.append(
                ToolReturned(
                    at=at + 10 * step,
                    step=step,
                    call=call,
                    ok=True,
                    text="",
                    seconds=1.0,
                    evaluation=evaluated,
                    device_s=2.0,
                )
            )
        if finish:
            steps = len(evaluations)
            spend = Spend(steps=steps, tokens=100 * steps, usd=0.5 * steps, device_s=2.0 * steps + 2.0)
            written.append(
                RunFinished(
                    at=at + 100,
                    reason=reason,
                    best=official and official.candidate,
                    official=official,
                    target_met=False,
                    spend=spend,
                )
            )
    return written


def plan(cases: dict[int, str]) -> str:
    configs = [config(problem=problem, case=case) for problem, case in cases.items()]
    return Plan.make(configs, "s", "h", "0").model_dump_json()


def test_a_row_of_a_run_that_became_correct_and_then_faster(tmp_path) -> None:
    slow, fast = evaluation(A, measured=measurement(0.8, 0.7)), evaluation(B, measured=measurement(1.5, 1.2))
    same = evaluation(B, measured=measurement(1.4, 1.1))
    row = read(record(tmp_path, "r", evaluation(A, Verdict.race), slow, fast, same, official=fast))
    assert (row.outcome, row.verdict, row.mode, row.correct) == ("sample", Verdict.passed, None, True)
    assert (row.name, row.family, row.attempts, row.spend.steps) == ("allreduce", "collective", 4, 4)
    assert row.eager and row.device and (row.eager.low, row.device.low) == (1.5, 1.2)
    assert (row.sol_us, row.sol_fraction) == (5.0, 0.5)
    figures = [(p.step, p.tokens, p.usd, p.device_s, p.device and p.device.low) for p in row.progress]
    assert figures == [(2, 200, 1.0, 4.0, 0.7), (3, 300, 1.5, 6.0, 1.2)]
    assert row.ratio("eager") == row.eager and row.ratio("headline") == row.device
    assert Success(p=1.19).holds(row) and not Success(p=1.2).holds(row) and Success(p=1.2, figure="eager").holds(row)


def test_a_run_without_a_correct_candidate_counts_by_its_last_failure(tmp_path) -> None:
    failed = read(record(tmp_path, "a", evaluation(A, Verdict.deadlock), evaluation(B, Verdict.compile_error)))
    assert (failed.outcome, failed.verdict, failed.mode) == ("sample", Verdict.compile_error, "compile")
    flaky = read(record(tmp_path, "b", evaluation(A, Verdict.race), evaluation(A)))
    assert (flaky.mode, flaky.correct, flaky.ratio()) == ("mismatch", False, None)
    silent = read(record(tmp_path, "c"))
    assert (silent.outcome, silent.verdict, silent.mode) == ("sample", None, "no candidate")
    official = evaluation(A, Verdict.wrong_values)
    undone = read(record(tmp_path, "d", evaluation(A, measured=measurement(2.0)), official=official))
    assert (undone.mode, undone.correct, Success(p=0.0).holds(undone)) == ("mismatch", False, False)


@pytest.mark.parametrize(
    ("reason", "finish", "outcome"),
    [
        ("submitted", True, "sample"),
        ("budget: usd", True, "sample"),
        ("model_stopped", True, "sample"),
        ("error: 503", True, "fault"),
        ("error: harness: no GPU", True, "fault"),
        ("interrupted", True, "unfinished"),
        ("cancelled", True, "unfinished"),
        ("", False, "unfinished"),
    ],
)
def test_only_runs_that_say_something_about_the_model_are_samples(tmp_path, reason, finish, outcome) -> None:
    assert read(record(tmp_path, "r", evaluation(A), reason=reason, finish=finish)).outcome == outcome


@pytest.mark.parametrize(("action", "outcome"), [("hint", "helped"), ("candidate", "helped"), ("pause", "sample")])
def test_a_run_that_a_person_has_helped_is_no_sample(tmp_path, action, outcome) -> None:
    with record(tmp_path, "r", evaluation(A), finish=False) as written:
        written.append(PersonActed(at=20.0, request="1", action=action, step=1, text="", candidate=A.hash))
        written.append(
            RunFinished(at=30.0, reason="submitted", best=None, official=None, target_met=False, spend=Spend(steps=1))
        )
    assert read(written).outcome == outcome


def test_samples_have_the_numbers_of_their_sweep_unless_two_have_the_same(tmp_path) -> None:
    record(tmp_path / "a", "third", at=100.0, sample=3)
    record(tmp_path / "a", "first", at=200.0, sample=1)
    record(tmp_path / "a", "broken", at=300.0, sample=2, reason="error: x")
    rows = load([tmp_path / "a"]).rows
    assert [(row.run_id, row.sample) for row in rows] == [("third", 3), ("first", 1), ("broken", None)]
    record(tmp_path / "b", "again", at=150.0, sample=1)
    rows = load([tmp_path / "a", tmp_path / "b"]).samples
    assert [(row.run_id, row.sample) for row in rows] == [("third", 1), ("again", 2), ("first", 3)]


def test_samples_are_numbered_by_start_and_faults_are_not(tmp_path) -> None:
    record(tmp_path, "late", at=300.0)
    record(tmp_path, "early", at=100.0)
    record(tmp_path, "broken", at=200.0, reason="error: x")
    record(tmp_path, "other", at=150.0, model="another")
    rows = load([tmp_path]).rows
    assert [(row.run_id, row.sample) for row in rows] == [("early", 1), ("other", 1), ("broken", None), ("late", 2)]


def test_runs_are_found_in_folders_sweeps_and_by_themselves_and_counted_once(tmp_path) -> None:
    sweep = tmp_path / "sweeps" / "s"
    record(sweep / "runs", "one")
    (sweep / "events.jsonl").write_text('{"kind": "something else"}\n')
    (sweep / "plan.json").write_text(plan({1: "pkb"}))
    record(tmp_path / "data", "two")
    loaded = load([sweep, tmp_path / "data", tmp_path / "data" / "two"])
    assert sorted(row.run_id for row in loaded.rows) == ["one", "two"] and not loaded.unreadable
    for folder in (tmp_path / "sweeps", tmp_path):  # a folder of sweeps, a folder of records with sweeps beside them
        assert [row.run_id for row in load([folder]).rows] == ["one"]
    record(tmp_path, "three")
    assert sorted(row.run_id for row in load([tmp_path]).rows) == ["one", "three"]
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UsageError, match="neither a run"):
        load([tmp_path / "nothing"])


def test_several_processes_read_the_same(tmp_path, monkeypatch) -> None:
    write_set(tmp_path, problems=(1,), samples=2, steps=2)
    (tmp_path / "0-p01-0" / "events.jsonl").write_text("{}\n")
    alone = load([tmp_path])
    monkeypatch.setattr("runs.loading._LARGE_BYTES", 0)
    assert load([tmp_path], processes=2) == alone and len(alone.rows) == 5 and len(alone.unreadable) == 1


def test_planned_problems_count_even_if_nothing_was_run_on_them(tmp_path) -> None:
    sweep = tmp_path / "s"
    record(sweep / "runs", "one")
    rows = load([sweep / "runs"]).rows
    assert [(key.problem, key.case) for key in planned([sweep / "runs"], rows)] == [(1, "pkb")]
    (sweep / "plan.json").write_text(plan({1: "pkb", 13: "large"}))
    expected = [(1, "pkb"), (13, "large")]
    for path in (sweep, tmp_path):
        assert [(key.problem, key.case) for key in planned([path], rows)] == expected
    (sweep / "plan.json").write_text("[]")
    with pytest.raises(UsageError, match=r"plan\.json"):
        planned([sweep], rows)


def test_a_broken_record_is_named_and_left_out(tmp_path) -> None:
    record(tmp_path, "good", evaluation(A))
    (record(tmp_path, "bad").path / "events.jsonl").write_text("{}\n")
    loaded = load([tmp_path])
    assert [row.run_id for row in loaded.rows] == ["good"]
    assert len(loaded.unreadable) == 1 and "bad" in loaded.unreadable[0]


def test_every_verdict_but_passed_has_a_mode() -> None:
    assert set(MODES) == set(Verdict) - {Verdict.passed}


def test_faster_is_by_the_lower_bound_with_a_margin_unless_raw() -> None:
    def holds(ratio: Ratio | None, p: float, **rest) -> bool:
        return Success(p=p, **rest).reached(Progress(step=1, tokens=0, usd=0, wall_s=0, device_s=0, device=ratio))

    ratio = Ratio(value=1.1, low=1.02, high=1.2)
    assert holds(ratio, 1.0) and not holds(ratio, 1.0, margin=0.03) and not holds(ratio, 1.05)
    assert holds(ratio, 1.05, raw=True) and not holds(ratio, 1.1, raw=True) and not holds(None, 0.0)
    assert not holds(ratio, 1.0, figure="eager")


def test_a_made_up_set_is_what_records_are(tmp_path) -> None:
    write_set(tmp_path, problems=(1, 13), samples=2, steps=3)
    loaded = load([tmp_path])
    assert len(loaded.samples) == 8 and len(loaded.rows) == 10 and not loaded.unreadable
    assert {row.family for row in loaded.rows} == {"collective", "tensor"}
    write_run(tmp_path, "x", "m", 1, 1.0, 3, 100, random.Random(1))
    folded, row = Record.open(tmp_path / "x").run(), read(Record.open(tmp_path / "x"))
    assert row.spend == folded.spend and row.attempts == 3 and row.correct
    assert json.loads(row.model_dump_json())["outcome"] == "sample"
