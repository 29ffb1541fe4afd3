"""A sweep on a real Ray cluster of several nodes on this machine, one of which is killed in the middle."""

import os
import threading
import time
from pathlib import Path

import pytest

ray = pytest.importorskip("ray")

from harness.allowance import Allowance  # noqa: E402
from harness.errors import BudgetEndedError, HarnessError, UsageError  # noqa: E402
from harness.evaluate import Sandbox  # noqa: E402
from harness.types import Candidate, Request, Verdict  # noqa: E402
from runs.sweep import CellEnded  # noqa: E402
from runs.sweep_record import SweepRecord  # noqa: E402
from service.engines import ray_cluster  # noqa: E402
from service.plan import make_plan, wanted  # noqa: E402
from service.sweep import Sweep  # noqa: E402
from tests.service.fake_engine import Silent  # noqa: E402
from tests.service.scripts import fails, right, solves, write  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch):
    """A head that measures nothing and two nodes that do."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    small = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=small | {"num_cpus": 0})
    try:
        workers = [cluster.add_node(**small, resources={ray_cluster.CPU_RESOURCE: 1}) for _ in range(2)]
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        yield cluster, workers
    finally:
        ray.shutdown()
        cluster.shutdown()


def plan_of(folder: Path, problems: tuple[int, ...]):
    for problem in problems:
        write(folder / "good", f"p{problem:02d}", solves(problem))
        write(folder / "bad", f"p{problem:02d}", fails(problem))
    asked = {
        "problems": problems, "models": f"scripted:{folder / 'good'},scripted:{folder / 'bad'}", "samples": 2,
        "case": "tiny", "platform": "cpu", "world_size": 2, "timing": False,
    }  # fmt: skip
    return make_plan(wanted(None, asked), "s")


def test_a_node_that_dies_in_the_middle_loses_nothing_and_doubles_nothing(nodes, tmp_path: Path) -> None:
    cluster, workers = nodes
    plan = plan_of(tmp_path, (1, 2))
    with SweepRecord(tmp_path / "s") as record, ray_cluster.cluster("cpu", 2) as pool:
        assert len(pool) == 2
        assert ray_cluster.capacity("cpu", 2) == 2
        record.open_to_write()
        record.lock_plan(plan)
        sweep = Sweep(record, plan, pool, Silent(), engine_name="ray", concurrency=6)

        def kill_one() -> None:
            while sum(isinstance(event, CellEnded) for event in record.events()) < 2:
                time.sleep(0.05)
            cluster.remove_node(workers[0], allow_graceful=False)

        killer = threading.Thread(target=kill_one)
        killer.start()
        assert sweep.run() == "done"
        killer.join()
        until = time.monotonic() + 90
        while ray_cluster.capacity("cpu", 2) > 1 and time.monotonic() < until:  # Ray takes a while to notice
            time.sleep(0.2)
        assert ray_cluster.capacity("cpu", 2) == 1
    tally = sweep.tally
    assert (tally.count("solved"), tally.count("unsolved"), tally.left) == (4, 4, 0)
    found = record.results()
    assert set(found) == set(plan.cells())
    for cell, folder in found.items():
        run = folder.run()
        good = cell.model.endswith("good")
        verdicts = [str(attempt.verdict) for attempt in run.attempts if attempt.verdict]
        assert verdicts == (["passed"] if good else verdicts[:1]) and run.target_met is good, cell
        calls = [(event.step, event.call.id) for event in folder.events() if event.kind == "tool_returned"]
        assert len(set(calls)) == len(calls), cell
        used = sum(event.device_s for event in folder.events() if event.kind == "tool_returned")
        used += run.official.device_s if run.official else 0.0
        assert run.spend.device_s == pytest.approx(used)


def test_a_limit_ends_what_a_node_is_at(nodes) -> None:
    asked = {"problem": 1, "case": "tiny", "platform": "cpu", "world_size": 2, "dtype": "float32", "timing": False}
    slow = Candidate(source=right(1).replace("solution =", "import time\ntime.sleep(20)\nsolution ="), backend="cpp")
    good = Candidate(source=right(1), backend="cpp")
    allowance = Allowance(lambda: "device_s" if allowance.device_s > 0.5 else None)
    with ray_cluster.cluster("cpu", 2) as pool:
        with pytest.raises(BudgetEndedError, match="device_s"):
            pool.evaluate(Request(candidate=slow, **asked), allowance=allowance)
        assert 0.5 < allowance.device_s < 20  # what was used was told meanwhile, and nothing waits for the candidate
        unlimited = Allowance(lambda: None)
        assert pool.evaluate(Request(candidate=good, **asked), allowance=unlimited).verdict is Verdict.passed
        assert len(pool) == 2 and unlimited.device_s > 0


def test_nodes_that_differ_are_not_used(nodes, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(ray_cluster, "source_hash", lambda: "another checkout")
    with pytest.raises(HarnessError, match="no node of the Ray cluster can be used"), ray_cluster.cluster("cpu", 2):
        pass
    said = capsys.readouterr().err
    assert said.count("is not used: Ringsmith's files: another checkout and ") == 2


def test_what_makes_two_nodes_differ() -> None:
    with Sandbox("cpu", 2) as sandbox:
        one = ray_cluster.Node(source=ray_cluster.source_hash(), environment=sandbox.environment())
    assert one.differences(one) == []
    newer = one.environment.model_copy(update={"torch": "9.9", "devices": ("other",)})
    assert one.differences(one.model_copy(update={"environment": newer, "source": "x"})) == [
        f"Ringsmith's files: {one.source} and x",
        f"devices: {one.environment.devices} and ('other',)",
        f"torch: {one.environment.torch} and 9.9",
    ]


def test_without_a_cluster_it_is_said_how_to_make_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{1 + os.getpid() % 1000}")
    monkeypatch.setattr(ray, "init", lambda **_: (_ for _ in ()).throw(ConnectionError("nobody")))
    with pytest.raises(UsageError, match="ray start --head"), ray_cluster.cluster("cpu", 2):
        pass
