"""The references by themselves: how long a problem's baseline takes and how far it is from the roofline. Imports no
torch."""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict, replace
from typing import Any

from harness import calibration, measure, roofline, slots
from harness.measure import Block
from harness.platforms import NotCapturableError, Plan
from harness.processes import Processes
from harness.types import DType, Frozen, Latency
from problems.catalogue import Entry
from problems.spec import Case

_DEADLINE_S = 60.0


class Baseline(Frozen):
    """One reference at one case."""

    problem: int
    name: str
    case: str
    eager: Latency
    device: Latency | None
    device_note: str
    sol_us: float | None
    bound_by: str | None
    achievable_us: float | None
    error: float
    """Of the reference against its float64 oracle, RMS, relative."""
    unsure: float
    input_bytes: int
    output_bytes: int
    seconds: float
    """For all of this."""

    @property
    def best_us(self) -> float:
        return (self.device or self.eager).median_us

    @property
    def fraction(self) -> float | None:
        """Of the roofline."""
        return None if self.sol_us is None else self.sol_us / self.best_us


def time_reference(processes: Processes, entry: Entry, case: Case, dtype: DType) -> Baseline:
    """Raises ProblemError if the problem cannot run so, SandboxError if it fails."""
    began = time.monotonic()
    work = processes.inspect(entry, case, dtype)
    with processes.lease().hold():
        ranks = processes.prepare(entry, case, dtype)

        def ask(op: str, **message: Any) -> list[dict[str, Any]]:
            doing = f"problem {entry.number}, case {case.name}: {op}"
            return processes.expect(ranks.ask(op, message, deadline_s=_DEADLINE_S), doing).replies

        def give(slot: int) -> None:
            ask("inputs", slot=slot, seed=secrets.randbits(62), in_place=False, alone=True)

        give(0)
        answers = ask("answer", slot=0)
        size = max(answer["input_bytes"] for answer in answers)
        filled = slots.number(size)
        for slot in range(1, filled):
            give(slot)
        writes = bool(entry.updates or entry.scratch)
        ask("rotate", copies=slots.copies(filled, writes), exchange=slots.exchange(ask("alike")))
        note = ""

        def time_block(mode: str) -> measure.TimeBlock:
            def block(plan: Plan) -> Block:
                plan = replace(plan, seed=secrets.randbits(60))
                replies = ask("time", mode=mode, plan=asdict(plan))
                if refused := [reply["not_capturable"] for reply in replies if "not_capturable" in reply]:
                    raise NotCapturableError(refused[0])
                return Block([reply["times_us"] for reply in replies], [reply["host_us"] for reply in replies])

            return block

        eager, plan = measure.alone(time_block("eager"), 1 if writes else None)
        device = None
        try:
            device, _ = measure.alone(time_block("device"), plan.calls)
        except NotCapturableError as refused:
            note = str(refused)
    names = processes.platform.device_names()
    stored = calibration.load(processes.platform.name, names)
    measured = stored.peaks(processes.world_size) if stored else None
    floors = roofline.floors(work, names[0], dtype, processes.world_size, measured)
    return Baseline(
        problem=entry.number,
        name=entry.name,
        case=case.name,
        eager=eager,
        device=device,
        device_note=note,
        sol_us=floors.sol_us,
        bound_by=floors.bound_by,
        achievable_us=floors.achievable_us,
        error=max(answer["off"] for answer in answers),
        unsure=max(answer["unsure"] for answer in answers),
        input_bytes=size,
        output_bytes=max(answer["output_bytes"] for answer in answers),
        seconds=time.monotonic() - began,
    )
