"""Sandboxes that are shared: with members of no processes, and with real ones."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from harness import lease
from harness.errors import HarnessError
from harness.evaluate import Sandbox
from harness.pool import LostError, Pool, local
from harness.types import Backend, Candidate, Request
from problems.catalogue import find, select_case, statement


class Member:
    """Says which member answered; fails as it is told to."""

    def __init__(self, name: str, *, fails: Exception | None = None, usable: bool = True, takes_s: float = 0.0) -> None:
        self.name, self.fails, self.is_usable, self.takes_s = name, fails, usable, takes_s
        self.asked: list[object] = []
        self.known: list[str] = []
        self.closed = False
        self._busy = threading.Lock()

    def compile(self, candidate, *, allowance=None):
        self.asked.append("compile")
        return SimpleNamespace(candidate=candidate.hash)

    def know(self, report) -> None:
        self.known.append(report.candidate)

    def evaluate(self, request, on_stage=None, *, last=False, allowance=None):
        assert self._busy.acquire(blocking=False), "two threads at once"
        try:
            self.asked.append(request.problem)
            time.sleep(self.takes_s)
            if self.fails:
                raise self.fails
            return self.name
        finally:
            self._busy.release()

    def usable(self) -> bool:
        return self.is_usable

    def close(self) -> None:
        self.closed = True


def request(problem: int = 1, source: str = "x", **changes) -> Request:
    fields = {"case": "tiny", "platform": "cpu", "world_size": 2, "dtype": "float32", "timing": False}
    return Request(candidate=Candidate(source=source, backend=Backend.cpp), problem=problem, **{**fields, **changes})


def test_each_member_answers_one_thread_at_a_time() -> None:
    members = [Member(str(n), takes_s=0.005) for n in range(3)]
    with Pool("cpu", 2, members) as pool, ThreadPoolExecutor(12) as threads:
        assert len(list(threads.map(lambda n: pool.evaluate(request(n % 5)), range(60)))) == 60
    assert all(member.asked and member.closed for member in members)


def test_a_problem_goes_to_the_sandbox_that_has_it() -> None:
    members = [Member("a"), Member("b")]
    pool = Pool("cpu", 2, members)
    one, two = pool.evaluate(request(1)), pool.evaluate(request(2))
    assert [pool.evaluate(request(n)) for n in (1, 2, 1, 2)] in ([one, two] * 2, [one] * 4)


def test_builders_build_and_members_are_told() -> None:
    member, builder = Member("m"), Member("b")
    pool = Pool("cpu", 2, [member], [builder])
    asked = request()
    assert pool.evaluate(asked) == "m"
    assert (builder.asked, member.asked, member.known) == (["compile"], [1], [asked.candidate.hash])


def test_what_a_lost_machine_was_asked_is_asked_elsewhere_once() -> None:
    lost, other = Member("lost", fails=LostError("node gone"), usable=False), Member("other")
    pool = Pool("cpu", 2, [other, lost])
    assert pool.evaluate(request()) == "other"
    assert lost.closed and len(lost.asked) == len(other.asked) == len(pool) == 1


def test_when_all_are_lost_a_new_one_is_waited_for() -> None:
    lost, new = Member("lost", fails=LostError("node gone"), usable=False), Member("new")
    pool = Pool("cpu", 2, [lost], patience_s=30)
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(pool.evaluate, request()) for _ in range(2)]
        while not lost.closed:
            time.sleep(0.001)
        pool.add(new)
        assert [answer.result(10) for answer in asked] == ["new"] * 2


def test_a_sandbox_whose_devices_are_out_is_not_asked_again() -> None:
    out, good = Member("out", fails=HarnessError("quarantined"), usable=False), Member("good")
    pool = Pool("cuda", 2, [good, out])
    with pytest.raises(HarnessError, match="quarantined"):
        pool.evaluate(request())
    assert [pool.evaluate(request()) for _ in range(3)] == ["good"] * 3 and len(pool) == 1
    good.fails, good.is_usable = HarnessError("quarantined too"), False
    for said in ("quarantined too", "no sandbox is left"):
        with pytest.raises(HarnessError, match=said):
            pool.evaluate(request())


def test_a_failure_that_leaves_it_usable_leaves_it_in_the_pool() -> None:
    member = Member("m", fails=HarnessError("once"))
    pool = Pool("cpu", 2, [member])
    with pytest.raises(HarnessError, match="once"):
        pool.evaluate(request())
    member.fails = None
    assert pool.evaluate(request()) == "m"


def test_stop_sends_away_who_waits_and_who_comes() -> None:
    member = Member("m", takes_s=0.2)
    pool = Pool("cpu", 2, [member])
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(pool.evaluate, request())
        while not member.asked:
            time.sleep(0.001)
        second = threads.submit(pool.evaluate, request())
        while not pool.waiting:
            time.sleep(0.001)
        pool.stop()
        assert first.result(10) == "m"
        for refused in (second, threads.submit(pool.evaluate, request())):
            with pytest.raises(KeyboardInterrupt):
                refused.result(10)


def test_many_threads_and_problems_on_real_sandboxes() -> None:
    """Two sandboxes that wait for the same lease; every verdict is its own candidate's."""

    def right(number: int) -> str:
        entry = find(number)
        return f"{statement(entry)}\nsolution = {entry.function}\n"

    wrong = "def solution(x):\n    return x * 0 + 7\n"
    sources = [(1, right(1)), (2, right(2)), (1, wrong), (13, right(13)), (2, wrong), (1, right(2))]
    wanted = ["passed", "passed", "wrong_values", "passed", "shape_error", "shape_error"]
    members = [Sandbox("cpu", 2) for _ in range(2)]
    with Pool("cpu", 2, members, [Sandbox("cpu", 2)]) as pool, ThreadPoolExecutor(6) as threads:
        entry = find(1)
        works = threads.map(lambda _: pool.inspect(entry, select_case(entry, "tiny"), "float32"), range(4))
        assert len(set(works)) == 1
        found = list(threads.map(lambda asked: pool.evaluate(request(*asked)), sources))
    assert [str(evaluation.verdict) for evaluation in found] == wanted
    assert [evaluation.problem for evaluation in found] == [number for number, _ in sources]
    assert all(evaluation.device_s > 0 for evaluation in found)


def test_a_machine_of_few_cores_has_one_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, members in ((2, 1), (64, 2)):
        monkeypatch.setattr("harness.machine.cpu", lambda cores=cores: SimpleNamespace(cores=cores))
        with local("cpu", 2) as pool:
            assert len(pool) == members


def test_gpus_are_divided_into_sets_and_a_quarantine_ends_the_use_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.pool.gpu_sets", lambda world_size: [(0, 1), (2, 3)])
    made = []
    monkeypatch.setattr(
        "harness.pool.Sandbox", lambda *a, **given: made.append(given.get("devices")) or Sandbox(*a, **given)
    )
    with local("cuda", 2) as pool:
        assert len(pool) == 4 and sorted(filter(None, made)) == [(0, 1), (0, 1), (2, 3), (2, 3)] and None in made
        members = pool._members.all
        assert all(member.usable() for member in members)
        lease.quarantine("cuda", [2], "a test")
        try:
            assert [member.usable() for member in members] == [True, False, True, False]
        finally:
            lease.lift()
    monkeypatch.setattr("harness.pool.gpu_sets", lambda world_size: [])
    with pytest.raises(HarnessError, match="2 GPUs are needed"):
        local("cuda", 2)
