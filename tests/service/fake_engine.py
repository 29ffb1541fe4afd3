"""An engine of no processes: judges candidates by their text. `python -m tests.service.fake_engine FOLDER MODELS` is a
sweep that kills itself."""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from harness.types import BuildReport, Limits, Request, Stage, Topology, Verdict
from problems.spec import Work
from runs.fold import Folding
from runs.record import Record
from runs.sweep import Cell, Plan
from runs.sweep_record import SweepRecord
from service.plan import make_plan, wanted
from service.sweep import Sweep
from service.tally import Tally
from tests.service.conftest import make_evaluation

KILLED = 9


class FakeEngine:
    """Passes every candidate but those that say `wrong`; each evaluation uses a device-second. `faults` are raised by
    the next ones (None: not by this one)."""

    platform_name = "cpu"
    world_size = 2
    limits = Limits()

    def __init__(self, faults: list[Exception | None] | None = None, before: Callable[[], None] = lambda: None) -> None:
        self.faults, self.before = faults or [], before
        self.evaluated: list[str] = []
        self.stopped = threading.Event()

    def stop(self) -> None:
        self.stopped.set()

    def topology(self) -> Topology:
        return Topology(platform="cpu", devices=("cpu",), summary="two ranks")

    def inspect(self, entry, case, dtype: str) -> Work:
        if self.faults and "down" in str(self.faults[0]):
            raise self.faults.pop(0)
        return Work(link_in_bytes=1.0)

    def compile(self, candidate, *, allowance=None) -> BuildReport:
        return BuildReport(candidate=candidate.hash, verdict=None, summary="built")

    def warm_up(self) -> None:
        pass

    def evaluate(self, request: Request, on_stage=None, *, last=False, allowance=None):
        self.before()
        if self.stopped.is_set():
            raise KeyboardInterrupt
        if self.faults and (fault := self.faults.pop(0)):
            raise fault
        self.evaluated.append(request.candidate.hash)
        verdict = Verdict.wrong_values if "wrong" in request.candidate.source else Verdict.passed
        return make_evaluation(
            request.candidate, verdict, problem=request.problem, case=request.case, stage=Stage.timing, device_s=1.0
        )


class Silent:
    """Watches without a word, and remembers."""

    def __init__(self) -> None:
        self.said: list[tuple] = []

    def started(self, cell: Cell, run_id: str, attempt: int, resumed: bool) -> None:
        self.said.append(("started", cell, attempt, resumed))

    def ended(self, cell: Cell, reason: str, state: Folding | None) -> None:
        self.said.append(("ended", cell, reason))

    def tick(self, tally: Tally) -> None:
        pass


def plan_for(models: str, **asked) -> Plan:
    flags = {"problems": "1,2", "models": models, "samples": 2, "case": "tiny", "platform": "cpu", "name": "s"}
    return make_plan(wanted(None, flags | asked), "s")


def swept(folder: Path, plan: Plan, engine: FakeEngine | None = None, **options) -> tuple[str, Sweep]:
    """Run the sweep in `folder`; returns why it ended, and itself."""
    with SweepRecord(folder) as record:
        record.open_to_write()
        record.lock_plan(plan)
        sweep = Sweep(record, plan, engine or FakeEngine(), Silent(), pause_s=0.001, **options)
        return sweep.run(), sweep


def results(folder: Path) -> dict:
    """What matters of each cell's run, times and names left out."""
    found = {}
    for cell, record in SweepRecord(folder).results().items():
        run = record.run()
        attempts = [(a.number, a.step, a.tool, a.candidate, a.verdict) for a in run.attempts]
        found[cell] = (run.reason, run.target_met, attempts, run.spend.steps, run.spend.tokens, round(run.spend.usd, 6))
    return found


def _main(folder: str, models: str) -> None:
    """Kill the sweep after its first write, go on and kill that after its second, and so on until one comes to its end;
    prints how many were killed. One thread: a fork each."""
    plan, killed = plan_for(models), 0
    while True:
        if not (pid := os.fork()):
            left = [killed % 23 + 1]
            for kind in (Record, SweepRecord):
                _count(kind, left)
            swept(Path(folder), plan, concurrency=3)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status) == 0:
            break
        assert os.waitstatus_to_exitcode(status) == KILLED
        killed += 1
    print(killed)


def _count(kind: type, left: list[int]) -> None:
    append = kind.append

    def counted(self, event) -> None:
        append(self, event)
        left[0] -= 1
        if left[0] == 0:
            os._exit(KILLED)

    kind.append = counted


if __name__ == "__main__":
    _main(*sys.argv[1:])
