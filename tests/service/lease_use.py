"""How busy a sweep keeps its devices (`python -m tests.service.lease_use`): scripted models think, many runs at once.

Prints, of the time in which evaluations wait, the share in which every device was leased; how long evaluations took;
and what the sandboxes cost in memory. One JSON document on stdout. Not a test: figures are printed, never judged.
"""

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

from harness import lease
from harness.pool import Pool, local
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
        began = time.monotonic()
        with SweepRecord(folder / "bench") as record, local(asked.platform, asked.world_size) as pool:
            record.open_to_write()
            record.lock_plan(plan)
            devices = range(1 if asked.platform == "cpu" else asked.world_size * (len(pool) // 2))
            meter = Meter(pool, [lease.FOLDER / f"{asked.platform}-{device}.lock" for device in devices])
            meter.start()
            reason = Sweep(record, plan, pool, Silent(), concurrency=asked.runs).run()
            meter.over.set()
            meter.join()
            print(json.dumps(figures(asked, reason, record, pool, meter, time.monotonic() - began), indent=1))


def figures(
    asked: argparse.Namespace, reason: str, record: SweepRecord, pool: Pool, meter: Meter, seconds: float
) -> dict:
    runs = [one.run() for one in record.results().values()]
    tools = [e for one in record.results().values() for e in one.events() if e.kind == "tool_returned" and e.evaluation]
    device_s = sum(run.spend.device_s for run in runs)
    return {
        "runs": len(runs),
        "reason": reason,
        "think_s": asked.think,
        "seconds": round(seconds, 1),
        "evaluations": len(tools) + sum(run.official is not None for run in runs),
        "sandboxes": len(pool),
        "memory_mib": round(meter.memory_mib),
        "waiting_share": round(meter.waited / meter.looks, 3),
        "leased_share": round(meter.held / meter.looks, 3),
        "leased_while_waiting": round(meter.held_waited / meter.waited, 3) if meter.waited else None,
        "evaluation_s_median": round(statistics.median(e.seconds for e in tools), 2),
        "at_work_s_median": round(statistics.median(sum(e.evaluation.stage_s.values()) for e in tools), 2),
        "stage_s_median": {
            stage: round(statistics.median(e.evaluation.stage_s.get(stage, 0.0) for e in tools), 3)
            for stage in sorted({stage for e in tools for stage in e.evaluation.stage_s})
        },
        "device_s": round(device_s, 1),
    }


if __name__ == "__main__":
    main()
