"""The keeper with sandboxes of no processes: what begins, ends, is gone on with, and is refused."""

import json
import os

import pytest

from harness.errors import UsageError
from problems.spec import ProblemError
from runs import control
from runs.events import PersonActed
from runs.record import Record
from service.asked import EvaluationAsked, RunAsked
from service.errors import ConflictError, UnknownError
from service.jobs.index import Filter
from service.jobs.store import Once
from service.plan import Wanted
from tests.service.jobs.conftest import wait
from tests.service.scripts import BROKEN, right, solves, turn

SOLVES = [turn(("write_candidate", {"source": "x = 1\n"}), ("run_benchmark", {})), turn(("submit", {}))]
READS = [turn(("read", {"what": "reference"})) for _ in range(200)]


def acted(keeper, run_id: str) -> list[str]:
    return [event.action for event in Record(keeper.root / run_id).events() if isinstance(event, PersonActed)]


def state(keeper, run_id: str) -> str:
    return keeper.store.job("run", run_id).state


def test_a_run_from_beginning_to_end(keepers, asked):
    keeper = keepers()
    run_id = keeper.start(asked(SOLVES).resolved(), by="somebody")
    wait(lambda: not keeper.is_active(run_id))
    run = keeper.tail(run_id).run()
    assert run.reason == "submitted" and run.target_met and run == Record(keeper.root / run_id).run()
    row = keeper.index.find(run_id)
    assert (row.state, row.verdict, row.steps) == ("finished", "passed", 2)
    job = keeper.store.job("run", run_id)
    assert (job.state, job.by) == ("ended", "somebody")
    with pytest.raises(ConflictError, match="has ended"):
        keeper.resume(run_id)
    with pytest.raises(ConflictError, match="has ended"):
        keeper.ask(run_id, "pause")


def test_runs_wait_for_their_turn_and_can_be_cancelled_before_it(keepers, asked):
    keeper = keepers(concurrency=1)
    first = keeper.start(asked(READS, 0.1).resolved())
    second = keeper.start(asked(SOLVES).resolved())
    wait(lambda: len(keeper.tail(first)) or keeper.tail(first).catch_up())
    assert keeper.index.find(second).state == "queued" and keeper.runs.waiting == 1
    with pytest.raises(ConflictError, match="has not begun"):
        keeper.ask(second, "hint", "be quick")
    keeper.ask(second, "cancel")
    keeper.ask(first, "cancel")
    wait(lambda: not keeper.is_active(second))
    assert keeper.tail(first).run().reason == "cancelled"
    assert keeper.index.find(second).state == "cancelled" and not (keeper.root / second).exists()


def test_interrupted_runs_go_on_with_the_next_server(keepers, asked):
    keeper = keepers(concurrency=2)
    runs = [keeper.start(asked(READS[:12], 0.05).resolved()) for _ in range(3)]
    wait(lambda: keeper.tail(runs[0]).catch_up() and len(keeper.tail(runs[0])) > 3)
    keeper = keepers()
    assert {state(keeper, run) for run in runs} <= {"queued", "running"}
    wait(lambda: not any(keeper.is_active(run) for run in runs))
    for run in runs:
        kinds = [json.loads(line)["kind"] for line in keeper.tail(run).lines(0)]
        assert kinds.count("model_replied") == 12 and keeper.tail(run).run().reason == "model_stopped"
    assert any("run_resumed" in line.decode() for run in runs for line in keeper.tail(run).lines(0))


def test_a_fork_begins_with_the_attempt(keepers, asked, member):
    keeper = keepers()
    first = keeper.start(asked(solves(1)).resolved())
    wait(lambda: not keeper.is_active(first))
    changed = asked([turn(("run_benchmark", {})), turn(("submit", {}))]).resolved()
    fork = keeper.fork(
        first, 2, hint="faster", change=lambda config: config.model_copy(update={"model": changed.model})
    )
    wait(lambda: not keeper.is_active(fork))
    run = keeper.tail(fork).run()
    assert run.helped and run.reason == "submitted" and run.attempts[0].tool == "person"
    assert Record(keeper.root / fork).candidate(run.attempts[0].candidate).source == right(1)
    told = [event for event in Record(keeper.root / fork).events() if isinstance(event, PersonActed)]
    assert first in told[1].text and "attempt 2" in told[1].text and told[1].text.endswith("faster")
    with pytest.raises(UnknownError, match="no attempt 9"):
        keeper.fork(first, 9)


def test_a_fork_that_was_killed_after_its_first_event_finds_its_candidate(keepers, asked):
    keeper = keepers()
    first = keeper.start(asked(solves(1)).resolved())
    wait(lambda: not keeper.is_active(first))
    fork = keeper.fork(first, 1)
    wait(lambda: not keeper.is_active(fork))
    keeper = keepers()
    record = Record(keeper.root / fork)
    lines = (record.path / "events.jsonl").read_bytes().splitlines(keepends=True)
    (record.path / "events.jsonl").write_bytes(lines[0])
    control.send(record.path, control.Request(action="hint", text="it was sent, the candidate was not"))
    keeper.store.set_job("run", fork, "running")
    keeper.tails.forget(record.path)
    keeper = keepers()
    wait(lambda: not keeper.is_active(fork))
    assert sorted(acted(keeper, fork)) == ["candidate", "hint"]
    assert record.candidate(keeper.tail(fork).run().attempts[0].candidate).source == BROKEN


def test_requests_with_a_key_begin_one_run(keepers, asked):
    keeper = keepers()
    config, once = asked(SOLVES).resolved(), Once("me", "k", "f")
    run_id = keeper.start(config, once=once)
    assert keeper.start(config, once=once) == run_id
    keeper = keepers()
    assert keeper.start(config, once=once) == run_id
    assert keeper.index.list(Filter())[1] == 1


def test_a_run_that_cannot_begin_says_why(keepers, asked, member):
    member.faults = [UsageError("the machine is down")]
    keeper = keepers()
    run_id = keeper.start(asked(SOLVES).resolved())
    wait(lambda: not keeper.is_active(run_id))
    row = keeper.index.find(run_id)
    assert row.state == "failed" and "down" in row.reason and state(keeper, run_id) == "failed"
    keeper.index.refresh()
    assert keeper.index.find(run_id).state == "failed"


def test_runs_of_other_processes_are_followed_but_not_led(keepers, asked, tmp_path, events):
    keeper = keepers()
    with Record.create(keeper.root, "theirs") as record:
        record.append(events[0])
        keeper.index.refresh()
        assert keeper.index.find("theirs").state == "running" and not keeper.is_active("theirs")
        keeper.ask("theirs", "hint", "try again")
        assert control.pending(record.path)[0].action == "hint"
    with pytest.raises(ConflictError, match="no process leads"):
        keeper.ask("theirs", "pause")


def test_evaluations_are_kept_and_made_again_after_a_restart(keepers, member):
    keeper = keepers()
    request = EvaluationAsked(problem=1, source="x = 1\n", platform="cpu", world_size=2).resolved()
    job_id = keeper.evaluate(request, once=Once("", "k", "f"))
    wait(lambda: keeper.evaluation(job_id).state == "ended")
    assert json.loads(keeper.evaluation(job_id).answer)["candidate"] == request.candidate.hash
    keeper.store.set_job("evaluation", job_id, "running", answer=None)
    keeper = keepers()
    wait(lambda: keeper.evaluation(job_id).state == "ended")
    assert member.evaluated == [request.candidate.hash] * 2
    with pytest.raises(UnknownError):
        keeper.evaluation("e-none")


def test_a_sweep_is_drained_gone_on_with_and_widened(keepers, asked):
    keeper = keepers()
    model = asked([turn(("read", {"what": "pages"}))] * 3, 0.05).model
    common = {"models": model, "platform": "cpu", "world_size": 2, "strategy": "loop", "concurrency": 1}
    wanted = Wanted.model_validate({"problems": "1,2", "samples": 2, **common})
    keeper.sweeps.start(wanted, "s")
    with pytest.raises(ConflictError, match="being run"):
        keeper.sweeps.start(wanted, "s")
    wait(lambda: keeper.sweeps.record("s").states())
    keeper = keepers()  # a server that ends leaves it to the next
    wait(lambda: keeper.store.job("sweep", "s").state == "ended")
    assert keeper.store.job("sweep", "s").error == "done"
    assert len(keeper.sweeps.record("s").results()) == 4
    keeper.sweeps.start(Wanted.model_validate({"samples": 3}), "s")
    wait(lambda: keeper.store.job("sweep", "s").state == "ended")
    assert len(keeper.sweeps.record("s").results()) == 6
    with pytest.raises(UsageError, match="other settings"):
        keeper.sweeps.start(Wanted.model_validate({"steps": 3}), "s")
    keeper.index.refresh()
    assert keeper.index.list(Filter(sweep="s"))[1] == 6
    with pytest.raises(ConflictError, match="has ended"):
        keeper.resume(keeper.index.list(Filter(sweep="s"))[0][0].run_id)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"model": "openai"}, "not a model"),
        ({"problem": 999}, "no problem"),
        ({"case": "none"}, "no case"),
        ({"strategy": "none"}, "strategy"),
        ({"platform": "cuda", "world_size": 64}, "GPUs"),
        ({"backend": "triton"}, "runs cpp"),
        ({"preset": "none"}, "no preset"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_kept(keepers, asked, changed, says):
    keeper = keepers()
    wanted = RunAsked.model_validate(asked(SOLVES).model_dump(exclude_unset=True) | changed)
    with pytest.raises((UsageError, ProblemError), match=says):
        keeper.start(wanted.resolved())
    assert keeper.index.list(Filter())[1] == 0 and not keeper.store.unfinished()


def test_files_of_this_machine_need_a_flag(keepers, asked, tmp_path):
    keeper = keepers(files=False)
    with pytest.raises(UsageError, match="not told to allow"):
        keeper.start(asked(SOLVES).resolved())
    with pytest.raises(UsageError, match="not told to allow"):
        keeper.allow_all(Wanted.model_validate({"problems": "1", "models": "openai/x,replay:/etc/passwd"}))


def test_a_key_reaches_no_record(keepers, asked, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "a-very-secret-word")
    keeper = keepers()
    run_id = keeper.start(asked(READS, 0.05).resolved())
    wait(lambda: keeper.tail(run_id).folding())
    with pytest.raises(UsageError, match="a key"):
        keeper.ask(run_id, "hint", "use a-very-secret-word")
    with pytest.raises(UsageError, match="a key"):
        keeper.start(asked(SOLVES).resolved().model_copy(update={"model": "openai/a-very-secret-word"}))


def test_one_server_a_root(keepers, tmp_path):
    keeper = keepers()
    other = type(keeper)(keeper.root, keeper.store)
    with pytest.raises(UsageError, match="another server"):
        other.open()
    assert os.path.exists(keeper.root / ".server")
