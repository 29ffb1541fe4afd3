"""A sandbox on a node: the real server as a process, real evaluations, connections and processes that die."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness import lease
from harness.allowance import Allowance
from harness.errors import BudgetEndedError, HarnessError, UsageError
from harness.evaluate import CandidateFailedError, Sandbox
from harness.remote.client import RemoteSandbox, facts
from harness.sandboxes import Access, open_sandbox
from harness.types import Backend, Candidate, Evaluation, Limits, Request, Verdict
from problems import catalogue
from problems.spec import ProblemError
from tests.nodes import HANG, PROBLEM, RIGHT, ROOT, WRONG, Proxy, alive, node, until

LIMITS = Limits(load_s=60, first_call_s=60, call_s=60)
FIGURES = {"stage_s", "device_s", "measurement", "ranks", "summary", "findings"}


def request(source: str, **changes) -> Request:
    candidate = Candidate(source=source, backend=Backend.cpp)
    settings = {"case": "tiny", "platform": "cpu", "world_size": 2, "dtype": "float32", "timing": False, "trials": 1}
    return Request(candidate=candidate, **{"problem": 1, "limits": LIMITS, **settings, **changes})


def remote(url: str, access: Access | None = None, limits: Limits = LIMITS) -> RemoteSandbox:
    box = open_sandbox(url, "cpu", 2, limits, access=access or Access())
    assert isinstance(box, RemoteSandbox)
    return box


def found(evaluation: Evaluation) -> list[dict]:
    """Without evidence: it counts elements of inputs that are drawn for each evaluation."""
    return [finding.model_dump(exclude={"evidence"}) for finding in evaluation.findings]


def jobs_begun(url: str) -> int:
    return facts(url, Access()).jobs_begun


@pytest.fixture(scope="module")
def served():
    with node() as one:
        yield one


@pytest.fixture(scope="module")
def box(served):
    with remote(served.url) as one:
        yield one


def test_every_call_answers_as_a_sandbox_here_does(box, tmp_path):
    entry = catalogue.find(1)
    case = catalogue.select_case(entry, "tiny")
    stages: dict[str, list] = {"here": [], "there": []}
    with Sandbox("cpu", 2, LIMITS) as here:
        box.warm_up()
        box.build_ahead([Candidate(source=RIGHT, backend=Backend.cpp)])
        assert box.inspect(entry, case, "float32") == here.inspect(entry, case, "float32")
        assert box.environment() == here.environment()
        ours, theirs = here.topology(), box.topology()
        assert (ours.devices, ours.figures.keys()) == (theirs.devices, theirs.figures.keys())
        for source in (RIGHT, WRONG):
            ours = here.evaluate(request(source), stages["here"].append)
            theirs = box.evaluate(request(source), stages["there"].append)
            assert ours.model_dump(exclude=FIGURES) == theirs.model_dump(exclude=FIGURES)
            assert found(ours) == found(theirs)
        assert stages["here"] == stages["there"] and len(stages["here"]) > 3
        broken = Candidate(source="from harness import kit\nLIB = kit.build('int f( {')\n", backend=Backend.cpp)
        assert here.compile(broken).model_dump(exclude={"build_s"}) == box.compile(broken).model_dump(
            exclude={"build_s"}
        )
    profile, device_s = box.profile(request(RIGHT), tmp_path / "traces")
    assert device_s > 0 and len(profile.ranks) == 2
    assert Path(profile.trace).parent == tmp_path / "traces"
    assert json.loads(Path(profile.trace).read_text())["traceEvents"]


def test_errors_keep_their_class(box, tmp_path):
    with pytest.raises(ProblemError, match="no problem"):
        box.evaluate(request(RIGHT, problem=999))
    with pytest.raises(UsageError, match="3 on cpu"):
        box.evaluate(request(RIGHT, world_size=3))
    with pytest.raises(CandidateFailedError) as failed:
        box.profile(request(WRONG), tmp_path)
    assert failed.value.evaluation.verdict is Verdict.wrong_values
    unreached = pytest.raises(HarnessError, match=r"cannot reach the node http://127\.0\.0\.1:9")
    with remote("http://127.0.0.1:9", Access(patience_s=0)) as nobody, unreached:
        nobody.environment()


def test_a_connection_that_is_cut_again_and_again_evaluates_once(served, box):
    proxy = Proxy(served.port)
    with remote(proxy.url) as far:
        far.environment()
        before = jobs_begun(served.url)
        seen = []

        def on_stage(stage):
            seen.append(stage)
            proxy.cut()

        assert far.evaluate(request(RIGHT), on_stage).passed
        assert proxy.cuts >= 4 and len(seen) == len(set(seen))
        assert jobs_begun(served.url) == before + 1
    proxy.close()


def test_a_request_whose_answer_is_lost_is_not_done_twice(served, box):
    proxy = Proxy(served.port)
    with remote(proxy.url) as far:
        far.environment()
        before, connections = jobs_begun(served.url), proxy.connections
        proxy.deaf = True

        def hear_again():
            until(lambda: proxy.connections > connections + 3)
            proxy.deaf = False

        threading.Thread(target=hear_again).start()
        assert far.compile(Candidate(source=RIGHT, backend=Backend.cpp)).verdict is None
        assert proxy.connections > connections + 3
        assert jobs_begun(served.url) == before + 1
    proxy.close()


def test_clients_share_a_node(served, box):
    found = []

    def one() -> None:
        with remote(served.url) as own:
            found.append(own.evaluate(request(RIGHT), last=True))

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [evaluation.passed for evaluation in found] == [True, True]


def workers(served) -> list[int]:
    return [pid for pid in served.processes() if b"harness.remote.worker" in _command(pid)]


def test_a_limit_ends_the_job_there_and_its_process_goes_on(served, box):
    box.environment()
    before, seen = workers(served), []
    allowance = Allowance(lambda: "device_s" if "correctness" in seen and allowance.device_s > 0.5 else None)
    forever = Limits(load_s=600, first_call_s=600, call_s=600)
    with pytest.raises(BudgetEndedError, match="device_s"):
        box.evaluate(request(HANG, limits=forever), seen.append, allowance=allowance)
    assert 0.5 < allowance.device_s < 30
    with lease.Lease("cpu", [0]).hold(wait_s=60):
        pass  # nobody holds it any more
    allowance = Allowance()
    again = box.evaluate(request(RIGHT), allowance=allowance)
    assert again.passed and workers(served) == before
    assert allowance.device_s == pytest.approx(again.device_s, abs=0.5) and again.device_s > 0


def test_waiting_for_the_node_s_lease_is_no_work(box):
    box.evaluate(request(RIGHT))
    held, allowance = threading.Event(), Allowance(lambda: None)

    def hold() -> None:
        with lease.Lease("cpu", [0]).hold():
            held.set()
            # Told while it lasts; where the next ranks are still coming up it is they who wait, which is known later.
            with contextlib.suppress(AssertionError):
                until(lambda: allowance.waited_s > 0.2, 10)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    evaluation = box.evaluate(request(RIGHT), allowance=allowance)
    holder.join()
    assert evaluation.passed and allowance.waited_s == pytest.approx(evaluation.waited_s, abs=0.5)


def test_a_limit_ends_the_trying_of_a_node_that_is_away(served):
    proxy = Proxy(served.port)
    with remote(proxy.url) as far:
        far.environment()
        proxy.close()
        with pytest.raises(BudgetEndedError, match="wall_s"):
            far.evaluate(request(RIGHT), allowance=Allowance(lambda: "wall_s"))


CLIENT = f"""
import sys
from harness.sandboxes import open_sandbox
from harness.types import *
limits = Limits(load_s=600, first_call_s=600, call_s=600)
wanted = Request(candidate=Candidate(source={HANG!r}, backend="cpp"), problem=1, case="tiny", platform="cpu",
                 world_size=2, dtype="float32", limits=limits)
with open_sandbox(sys.argv[1], "cpu", 2, limits) as box:
    box.evaluate(wanted, lambda stage: print(stage, flush=True))
"""


@pytest.fixture
def waiting():
    """`waiting(node)`: a client process that waits for a candidate that hangs."""
    started = []

    def start(served):
        process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, served.url], cwd=ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        started.append(process)
        for line in process.stdout:
            if line.strip() == "correctness":
                return process
        raise AssertionError("the client ended")

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_ctrl_c_at_the_client_ends_its_job_and_its_processes(waiting):
    with node() as served:
        client = waiting(served)
        assert len(served.processes()) >= 6  # its process, fork server, reference and candidate ranks
        client.send_signal(signal.SIGINT)
        client.wait(30)
        until(lambda: not served.processes())
        assert facts(served.url, Access()).sessions == 0


def test_a_client_that_is_killed_is_noticed(waiting):
    with node("--idle", 5) as served:
        client = waiting(served)
        client.kill()
        until(lambda: not served.processes())
        with remote(served.url) as another:
            assert another.evaluate(request(RIGHT), last=True).passed
        served.process.terminate()
        assert served.process.wait(30) == 0


def test_nothing_survives_a_killed_server_and_the_client_says_whose_fault_it_is(waiting):
    with node() as served:
        processes, failed = [], []

        def on_stage(stage):
            if stage == "correctness" and not processes:
                processes.extend(served.processes())
                served.process.kill()

        with remote(served.url, Access(patience_s=2)) as far, pytest.raises(HarnessError, match="cannot reach"):
            failed.append(far.evaluate(request(RIGHT), on_stage))
    assert len(processes) >= 6
    until(lambda: not any(map(alive, processes)))


def test_a_server_that_is_started_anew_does_the_lost_job_once_more(tmp_path):
    with node() as first:
        second = []
        port = first.port

        def on_stage(stage):
            if stage == "correctness" and not second:
                first.process.kill()
                first.process.wait()
                second.append(node(port=port))
                second[0].__enter__()

        try:
            with remote(first.url) as far:
                assert far.evaluate(request(RIGHT), on_stage, last=True).passed
            assert jobs_begun(first.url) == 1
        finally:
            second[0].__exit__(None, None, None)


def test_sigterm_ends_everything_while_a_client_waits(waiting):
    with node() as served:
        waiting(served)
        processes = served.processes()
        served.process.terminate()
        assert served.process.wait(30) == 0
        until(lambda: not any(map(alive, processes)))
        assert not list(Path("/tmp").glob(f"ringsmith-node-{served.process.pid}-*"))


def test_a_session_whose_process_dies_goes_on_with_another(served, box):
    box.environment()
    before = jobs_begun(served.url)
    killed = []

    def on_stage(stage):
        if stage == "correctness" and not killed:
            killed.extend(workers(served))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    assert box.evaluate(request(RIGHT), on_stage).passed
    assert killed and jobs_begun(served.url) == before + 1


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_problem_files_travel_only_to_a_node_that_takes_them(served, tmp_path):
    path = tmp_path / "twice.py"
    path.write_text(PROBLEM)
    wanted = request(RIGHT.replace("return y", "return 2 * y"), suite=str(path))
    with remote(served.url) as far, pytest.raises(UsageError, match="--accept-suites"):
        far.evaluate(wanted)
    with node("--accept-suites", "--most-sessions", 1) as open_node, remote(open_node.url) as far:
        evaluation = far.evaluate(wanted)
        assert evaluation.passed and (evaluation.name, evaluation.suite) == ("twice", str(path))
        with remote(open_node.url) as one_too_many, pytest.raises(HarnessError, match="1 sessions are open"):
            one_too_many.environment()
