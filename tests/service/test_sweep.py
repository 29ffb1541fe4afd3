"""Sweeps with an engine of no processes: what is run, when it ends, and what is left after it was killed."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agent.models.base import ModelError
from agent.models.scripted import Scripted
from harness import machine
from harness.errors import HarnessError, UsageError
from runs.events import Budget
from runs.loading import load
from runs.record import Record
from runs.sweep import Cell
from runs.sweep_record import SweepRecord, sweep_record
from service.cli import USAGE, main
from service.plan import make_plan, select, wanted, widen
from service.sweep import Sweep
from tests.service.fake_engine import FakeEngine, Silent, plan_for, results, swept
from tests.service.scripts import turn, write

ROOT = Path(__file__).resolve().parent.parent.parent
RIGHT = "def solution(x):\n    return x\n"


@pytest.fixture
def models(tmp_path: Path) -> str:
    """Two: `good` solves everything at its second try; `bad` only problem 2, in its second sample."""
    paid = {"usage": {"input_tokens": 90, "output_tokens": 10}, "cost_usd": 0.01}
    good = [
        turn(("write_candidate", {"source": "wrong = 1\n"}), ("run_benchmark", {}), **paid),
        turn(("write_candidate", {"source": RIGHT}), ("run_benchmark", {}), **paid),
        turn(("submit", {}), **paid),
    ]
    write(tmp_path / "good", "default", good)
    write(tmp_path / "bad", "default", [good[0], {"text": "I give up.", **paid}])
    write(tmp_path / "bad", "p02.2", good[1:])
    return f"scripted:{tmp_path / 'good'},scripted:{tmp_path / 'bad'}"


def kinds(sweep) -> list[str]:
    return [said[0] for said in sweep.watch.said]


def test_every_cell_is_run_once(tmp_path: Path, models: str) -> None:
    plan = plan_for(models)
    reason, sweep = swept(tmp_path / "s", plan)
    tally = sweep.tally
    assert reason == "done" and tally.left == 0 and len(tally.cells) == 8
    good, bad = plan.models
    assert (tally.count("solved", good), tally.count("solved", bad), tally.count("unsolved", bad)) == (4, 1, 3)
    # Steps: good 3 each; bad 2 each (a reply without a call is answered, then the script ends), solved 2.
    assert tally.spend.tokens == tally.spend.steps * 100 and tally.spend.usd == pytest.approx(tally.spend.steps * 0.01)
    record = SweepRecord(tmp_path / "s")
    assert record.plan() == plan and not record.is_being_run()
    found = record.results()
    assert set(found) == set(plan.cells())
    for cell, run in found.items():
        config = run.started().config
        assert (config.problem, config.model, config.sample, config.case) == (
            cell.problem, cell.model, cell.sample, "tiny",
        )  # fmt: skip
    assert len(list(record.runs.iterdir())) == 8
    again, sweep = swept(tmp_path / "s", plan)
    assert again == "done" and kinds(sweep) == [] and sweep.tally.count("solved") == 5
    assert sweep.tally.spend == tally.spend


def test_a_sweep_killed_after_every_few_writes_has_the_same_results(tmp_path: Path, models: str) -> None:
    swept(tmp_path / "whole", plan_for(models))
    script = [sys.executable, "-m", "tests.service.fake_engine", str(tmp_path / "killed"), models]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 12
    assert results(tmp_path / "killed") == results(tmp_path / "whole")
    for record in SweepRecord(tmp_path / "killed").results().values():
        steps = [event.step for event in record.events() if event.kind == "model_replied"]
        assert steps == list(range(1, len(steps) + 1))  # none paid twice
    ids = [record.run_id for record in SweepRecord(tmp_path / "killed").results().values()]
    assert len(set(ids)) == len(list((tmp_path / "killed" / "runs").iterdir())) == 8


def test_two_processes_cannot_work_on_one_sweep(tmp_path: Path, models: str) -> None:
    with SweepRecord(tmp_path / "s") as record:
        record.open_to_write()
        assert record.is_being_run()
        with pytest.raises(UsageError, match="sweep s is being written by another process"):
            swept(tmp_path / "s", plan_for(models))


def test_a_sweep_grows_and_keeps_its_meaning(tmp_path: Path, models: str) -> None:
    good, bad = models.split(",")
    plan = plan_for(good, problems="1", samples=1)
    swept(tmp_path / "s", plan)

    def asked(**flags):
        return widen(plan, wanted(None, flags), frozenset(flags))

    assert asked() == plan
    assert asked(samples=1, problems="1") == plan
    wider = asked(models=bad, problems="2", samples=2)
    assert wider.models == (good, bad) and wider.cases == {1: "tiny", 2: "pkb"} and wider.samples == 2
    reason, sweep = swept(tmp_path / "s", wider)
    assert reason == "done" and kinds(sweep).count("started") == 7
    with pytest.raises(UsageError, match=r"dtype: float32 -> float64; budget.steps: 20 -> 3"):
        asked(dtype="float64", steps=3)
    with pytest.raises(UsageError, match="case of problem 1: tiny -> odd"):
        asked(case="odd")
    with pytest.raises(UsageError, match="strategy: phased -> single"):
        asked(strategy="single")


def test_a_sweep_may_move_to_another_node(models: str) -> None:
    plan = plan_for(models, sandbox="http://one:1/")
    assert plan.config(plan.cells()[0]).sandbox == "http://one:1"

    def asked(**flags):
        return widen(plan, wanted(None, flags), frozenset(flags))

    assert asked(samples=1) == plan
    assert [asked(sandbox=where).common["sandbox"] for where in ("https://two:2", "")] == ["https://two:2", ""]
    with pytest.raises(UsageError, match="--sandbox takes"):
        asked(sandbox="two")


def test_a_preset_is_a_key_of_the_plan_that_others_win_over(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text('problems = "13"\nmodels = "a/b"\nplatform = "cpu"\npreset = "pkb-agentic"\nsteps = 7\n')
    plan = make_plan(wanted(file, {"world_size": 2}), "s")
    common = plan.common
    assert (common["strategy"], common["check"], common["protocol"]) == ("loop", "pkb", "pkb") and plan.cases == {
        13: "pkb"
    }
    assert (common["budget"]["steps"], common["world_size"]) == (7, 2)
    again = wanted(file, {"world_size": 2})
    assert widen(plan, again, frozenset(again.model_fields_set)) == plan
    with pytest.raises(UsageError, match="strategy: loop -> phased"):
        widen(plan, wanted(None, {"strategy": "phased"}), frozenset({"strategy"}))
    with pytest.raises(UsageError, match="no preset 'x'; there are pkb-agentic"):
        wanted(file, {"preset": "x"})


def test_a_preset_is_refused_where_its_figures_would_mean_nothing(
    tmp_path: Path, models: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "default_platform", lambda: "cpu")
    asked = ["sweep", "--problems", "1", "--models", models, "--name", "s", "--runs-dir", str(tmp_path), "--dry-run"]
    assert main([*asked, "--preset", "pkb-agentic"]) == USAGE
    assert "preset pkb-agentic is for cuda" in capsys.readouterr().err
    assert main([*asked, "--preset", "pkb-agentic", "--platform", "cpu"]) == 0
    shown = capsys.readouterr()
    assert "check pkb, protocol pkb, strategy loop" in shown.out and "compares with no published figure" in shown.err


def test_a_run_of_several_lanes_is_one_cell_and_one_sample(tmp_path: Path, models: str) -> None:
    good = models.split(",", maxsplit=1)[0]
    reason, sweep = swept(tmp_path / "s", plan_for(good, problems="1", strategy="lanes:2", steps=4))
    assert reason == "done" and sweep.tally.count("solved") == len(sweep.tally.cells) == 2
    assert [record.run().lanes for record in SweepRecord(tmp_path / "s").results().values()] == [2, 2]
    samples = load([tmp_path / "s"]).samples
    assert sorted((row.sample, row.config.sample, row.correct) for row in samples) == [(1, 1, True), (2, 2, True)]
    with pytest.raises(UsageError, match="4 lanes need at least 4 steps"):
        plan_for(good, strategy="lanes:4", steps=3)


def test_failures_of_ours_are_gone_on_with_and_others_are_not(tmp_path: Path, models: str) -> None:
    good, bad = models.split(",")
    engine = FakeEngine([HarnessError("down"), None, None, HarnessError("official")])
    reason, sweep = swept(tmp_path / "s", plan_for(good, problems="1", samples=1), engine)
    # Down before there was a record; then at the official evaluation; then it goes on in the same record.
    assert reason == "done" and sweep.tally.count("solved") == 1
    assert [said[2:] for said in sweep.watch.said if said[0] == "started"] == [(1, False), (2, False), (3, True)]
    (record,) = SweepRecord(tmp_path / "s").results().values()
    ends = [event.reason for event in record.events() if event.kind == "run_finished"]
    assert ends == ["error: harness: official", "submitted"]

    _, sweep = swept(tmp_path / "bad", plan_for(bad, problems="1", samples=1))
    assert kinds(sweep) == ["started", "ended"] and sweep.tally.count("unsolved") == 1


def test_a_cell_that_keeps_failing_is_left_for_the_next_time(tmp_path: Path, models: str) -> None:
    plan = plan_for(models.split(",", maxsplit=1)[0], problems="1", samples=1)
    engine = FakeEngine([HarnessError("down")] * 3)
    reason, sweep = swept(tmp_path / "s", plan, engine, retries=2)
    assert (reason, sweep.tally.count("failed"), sweep.tally.left) == ("done", 1, 1)
    assert kinds(sweep).count("started") == 3
    reason, sweep = swept(tmp_path / "s", plan, engine)
    assert sweep.tally.count("solved") == 1 and sweep.tally.left == 0


def test_a_provider_that_fails_is_asked_again(tmp_path: Path, models: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reply, failing = Scripted.reply, [ModelError("lab/model: 503")]

    def once_down(self, messages, tools, bounds=None):
        if len(messages) > 2 and failing:
            raise failing.pop()
        return reply(self, messages, tools, bounds)

    monkeypatch.setattr(Scripted, "reply", once_down)
    reason, sweep = swept(tmp_path / "s", plan_for(models.split(",", maxsplit=1)[0], problems="1", samples=1))
    assert reason == "done" and sweep.tally.count("solved") == 1 and sweep.tally.spend.steps == 3
    (record,) = SweepRecord(tmp_path / "s").results().values()
    ends = [event.reason for event in record.events() if event.kind == "run_finished"]
    assert ends == ["error: lab/model: 503", "submitted"]


def test_failures_in_a_row_end_the_sweep(tmp_path: Path, models: str) -> None:
    engine = FakeEngine([HarnessError("down")] * 100)
    reason, sweep = swept(tmp_path / "s", plan_for(models, samples=5), engine, retries=0, concurrency=1)
    assert reason == "error: 5 cells in a row failed, the last of error: down"
    assert (sweep.tally.count("failed"), sweep.tally.count("waiting")) == (5, 15)


@pytest.mark.parametrize(
    ("caps", "named"),
    [
        (Budget(steps=None, usd=0.05), "usd"),
        (Budget(steps=None, tokens=500), "tokens"),
        (Budget(steps=None, device_s=5.0), "device_s"),
        (Budget(steps=None, wall_s=1e-9), "wall_s"),
    ],
)
def test_caps_of_the_whole_sweep(tmp_path: Path, models: str, caps: Budget, named: str) -> None:
    plan = plan_for(models.split(",", maxsplit=1)[0])
    reason, sweep = swept(tmp_path / "s", plan, concurrency=1, caps=caps)
    assert reason == f"cap: {named}" and 0 < sweep.tally.left <= 4
    assert sweep.tally.count("running") == 0
    spent = sweep.tally.spend
    reason, sweep = swept(tmp_path / "s", plan, concurrency=1, caps=caps)
    used = sweep.tally.spend
    assert reason == f"cap: {named}"  # counted over all processes
    assert (used.tokens, used.usd, used.device_s) == (spent.tokens, spent.usd, spent.device_s)
    assert swept(tmp_path / "s", plan)[0] == "done"


def test_stopped_runs_are_recorded_as_interrupted_and_go_on(tmp_path: Path, models: str) -> None:
    plan = plan_for(models)
    seen = threading.Event()
    engine = FakeEngine(before=lambda: (seen.set(), engine.stopped.wait(10)))
    with SweepRecord(tmp_path / "s") as record:
        record.open_to_write()
        record.lock_plan(plan)
        sweep = Sweep(record, plan, engine, Silent(), concurrency=3)
        threading.Thread(target=lambda: (seen.wait(10), sweep.stop()), daemon=True).start()
        assert sweep.run() == "interrupted"
    assert sweep.tally.count("interrupted") == 3 and sweep.tally.count("waiting") == 5
    for folder in (tmp_path / "s" / "runs").iterdir():
        assert Record.open(folder).run().reason in ("interrupted", None)
    reason, sweep = swept(tmp_path / "s", plan)
    assert reason == "done" and sum(said[0] == "started" and said[3] for said in sweep.watch.said) == 3
    swept(tmp_path / "whole", plan)
    assert results(tmp_path / "s") == results(tmp_path / "whole")


def test_a_drained_sweep_lets_its_runs_end(tmp_path: Path, models: str) -> None:
    plan = plan_for(models)
    engine = FakeEngine(before=lambda: (tmp_path / "s" / "drain").touch())
    reason, sweep = swept(tmp_path / "s", plan, engine, concurrency=2)
    assert reason == "drained" and sweep.tally.left == 6 and sweep.tally.count("interrupted") == 0
    assert swept(tmp_path / "s", plan)[0] == "done"


def test_problems_by_number_range_name_family_and_tag() -> None:
    def numbers(said):
        return [entry.number for entry in select(said, "")]

    assert numbers("all") == list(range(1, 88))
    assert numbers("8-10, 1,gemm_allreduce,1") == [1, 8, 9, 10, 13]
    assert numbers([3, "family:vocab"]) == [3, 73, 82, 83, 84]
    assert 54 in numbers("tag:p2p") and 1 not in numbers("tag:p2p")
    for said, error in (("family:nope", "there are collective"), ("tag:nope", "no problem of"), (",", "no problem is")):
        with pytest.raises(UsageError, match=error):
            numbers(said)


def test_a_plan_file_has_the_flags_names(tmp_path: Path, models: str) -> None:
    file = tmp_path / "plan.toml"
    file.write_text('problems = ["1", 5, "8-9"]\nmodels = ["a/b", "c/d"]\nsamples = 2\nusd = 1.5\nplatform = "cpu"\n')
    plan = make_plan(wanted(file, {"samples": 3, "dtype": "float64"}), "s")
    assert len(plan.cells()) == 4 * 2 * 3 and plan.common["budget"]["usd"] == 1.5 and plan.common["dtype"] == "float64"
    assert plan.cells()[0] == Cell(problem=1, model="a/b", sample=1)
    for text, said in (("nonsense = 1", "nonsense: no such key"), ("samples = 0", "samples: "), ("x", "not TOML")):
        file.write_text(text)
        with pytest.raises(UsageError, match=said):
            wanted(file, {})
    for name in ("", "../x", "a/b"):
        with pytest.raises(UsageError, match="no name"):
            sweep_record(tmp_path, name)
