"""How busy a sweep keeps its devices (`python -m tests.service.lease_use`): scripted models think, many runs at once.

Prints, of the time in which evaluations wait, the share in which every device was leased; how long evaluations took;
what the sandboxes cost in memory; and, as the candidate is the reference itself, how far its speed-up is from 1 while
the others are at work, beside the same evaluated alone (`--alone`). One JSON document on stdout. Not a test: figures
are printed, never judged.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness import lease
from harness.pool import Pool, local
from harness.types import Candidate, Evaluation, Request
from runs.fold import Folding
from runs.sweep import Cell, Plan
from runs.sweep_record import SweepRecord
from service.plan import make_plan, wanted
from service.sweep import Sweep
from tests.processes import descendants
from tests.service.fake_engine import Silent
from tests.service.scripts import right, turn, write


class Meter(threading.Thread):
    """Looks every 10 ms whether the devices are leased and whether somebody waits for a sandbox."""

    def __init__(self, pool: Pool, files: list[Path]) -> None:
        super().__init__(daemon=True)
        self._pool, self._files = pool, files
        self.over = threading.Event()
        self.looks = self.waited = 0
        self.held = self.held_waited = 0.0
        self.memory_mib = 0.0

    def run(self) -> None:
        looked = 0.0
        while not self.over.wait(0.01):
            share = self._held()
            self.looks += 1
            self.held += share
            if self._pool.waiting:
                self.waited += 1
                self.held_waited += share
            if time.monotonic() - looked > 5:
                looked = time.monotonic()
                self.memory_mib = max(self.memory_mib, pss_mib(descendants(os.getpid())))

    def _held(self) -> float:
        """Share of the devices whose lock somebody has; nobody's lock is tried for it."""
        locked = {line.split()[5].rpartition(":")[2] for line in Path("/proc/locks").read_text().splitlines()}
        return statistics.mean(file.exists() and str(file.stat().st_ino) in locked for file in self._files)


def pss_mib(pids: list[int]) -> float:
    """Memory of processes, what they share counted once."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--think", type=float, default=20.0, help="seconds of each reply")
    parser.add_argument("--replies", type=int, default=4, help="of a run; each but the last evaluates a candidate")
    parser.add_argument("--platform", default="cpu")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--case", default="tiny")
    parser.add_argument("--alone", type=int, default=0, help="evaluations with nobody else at work, before the sweep")
    parser.add_argument("--seconds", type=float, default=3600.0, help="of the sweep, after which it is stopped")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lease.FOLDER = folder / "leases"  # whoever else is at work on this machine is not counted
        turns = [
            turn(("write_candidate", {"source": right(1) + f"\n# {number}\n"}), ("run_benchmark", {}))
            for number in range(asked.replies - 1)
        ]
        write(folder / "model", "p01", [*turns, turn(("submit", {}))])
        flags = {
            "problems": "1", "models": f"scripted:{folder / 'model'}?think={asked.think}", "samples": asked.runs,
            "case": asked.case, "platform": asked.platform, "world_size": asked.world_size,
        }  # fmt: skip
        plan = make_plan(wanted(None, flags), "bench")
        with SweepRecord(folder / "bench") as record, local(asked.platform, asked.world_size) as pool:
            record.open_to_write()
            record.lock_plan(plan)
            devices = range(1 if asked.platform == "cpu" else asked.world_size * (len(pool) // 2))
            alone = [evaluated_alone(plan, pool, number) for number in range(asked.alone)]
            began = time.monotonic()
            meter = Meter(pool, [lease.FOLDER / f"{asked.platform}-{device}.lock" for device in devices])
            meter.start()
            sweep = Sweep(record, plan, pool, Said(), concurrency=asked.runs)
            clock = threading.Timer(asked.seconds, sweep.stop)
            clock.daemon = True
            clock.start()
            reason = sweep.run()
            clock.cancel()
            meter.over.set()
            meter.join()
            print(json.dumps(figures(asked, reason, record, pool, meter, time.monotonic() - began, alone), indent=1))


class Said(Silent):
    """On stderr what ends, so that a machine that takes long is told from one that hangs."""

    def ended(self, cell: Cell, reason: str, state: Folding | None) -> None:
        print(f"{time.strftime('%X')} {cell}: {reason}", file=sys.stderr, flush=True)


def evaluated_alone(plan: Plan, pool: Pool, number: int) -> Evaluation:
    config = plan.config(plan.cells()[0])
    candidate = Candidate(source=right(1) + f"\n# alone {number}\n", backend=config.backend)
    return pool.evaluate(
        Request(
            candidate=candidate,
            problem=1,
            case=config.case,
            platform=config.platform,
            world_size=config.world_size,
            dtype=config.dtype,
        )
    )


def against_itself(evaluations: Sequence[Evaluation]) -> dict | None:
    """How a candidate that is the reference was timed: its speed-up ought to be 1."""
    timings = [e.measurement.device or e.measurement.eager for e in evaluations if e.measurement]
    ratios = [timing.speedup for timing in timings]
    if not ratios:
        return None
    return {
        "evaluations": len(ratios),
        "speedup_median": round(statistics.median(ratio.value for ratio in ratios), 4),
        "off_median": round(statistics.median(abs(ratio.value - 1) for ratio in ratios), 4),
        "off_most": round(max(abs(ratio.value - 1) for ratio in ratios), 4),
        "interval_median": round(statistics.median(ratio.high - ratio.low for ratio in ratios), 4),
        "intervals_with_1": sum(ratio.low <= 1 <= ratio.high for ratio in ratios),
    }


def median(values: Iterable[float]) -> float | None:
    found = list(values)
    return round(statistics.median(found), 3) if found else None


def figures(
    asked: argparse.Namespace,
    reason: str,
    record: SweepRecord,
    pool: Pool,
    meter: Meter,
    seconds: float,
    alone: Sequence[Evaluation],
) -> dict:
    begun = [record.begun(state.run_id) for state in record.states().values() if state.run_id]
    records = [one for one in begun if one is not None]  # those that were stopped in the middle as well
    runs = [one.run() for one in records]
    tools = [e for one in records for e in one.events() if e.kind == "tool_returned" and e.evaluation]
    device_s = sum(run.spend.device_s for run in runs)
    return {
        "runs": len(runs),
        "ended": len(record.results()),
        "reason": reason,
        "think_s": asked.think,
        "seconds": round(seconds, 1),
        "evaluations": len(tools) + sum(run.official is not None for run in runs),
        "sandboxes": len(pool),
        "memory_mib": round(meter.memory_mib),
        "waiting_share": round(meter.waited / meter.looks, 3),
        "leased_share": round(meter.held / meter.looks, 3),
        "leased_while_waiting": round(meter.held_waited / meter.waited, 3) if meter.waited else None,
        "evaluation_s_median": median(e.seconds for e in tools),
        "at_work_s_median": median(sum(e.evaluation.stage_s.values()) for e in tools),
        "stage_s_median": {
            stage: median(e.evaluation.stage_s.get(stage, 0.0) for e in tools)
            for stage in sorted({stage for e in tools for stage in e.evaluation.stage_s})
        },
        "device_s": round(device_s, 1),
        "against_itself": against_itself([e.evaluation for e in tools]),
        "against_itself_alone": against_itself(alone),
    }


if __name__ == "__main__":
    main()
