"""How far a sweep is: cells by state, what they have used, how long it may still take."""

from __future__ import annotations

import time
from typing import Literal

from harness.types import Frozen
from runs.events import RunFinished, Spend, is_final
from runs.fold import Folding, folding
from runs.spend import total
from runs.sweep import Cell, Plan, wall_s
from runs.sweep_record import SweepRecord

State = Literal["waiting", "running", "solved", "unsolved", "interrupted", "failed"]
"""`solved`: the official evaluation passed. `failed`: for a reason of ours or a provider's; it is no result."""
STATES: tuple[State, ...] = ("waiting", "running", "solved", "unsolved", "interrupted", "failed")


class CellTally(Frozen):
    state: State
    spend: Spend = Spend()


class Tally:
    """Not thread-safe."""

    def __init__(self, plan: Plan, record: SweepRecord) -> None:
        """From what the records say now."""
        self.cells: dict[Cell, CellTally] = {}
        self._earlier_s, self._since = wall_s(record.events()), time.time()
        self._until: float | None = None
        self._ended = 0
        """Cells that this process has brought to their end."""
        states = record.states()
        for cell in plan.cells():
            self.cells[cell] = CellTally(state="waiting")
            if (state := states.get(cell)) is not None:
                begun = record.begun(state.run_id)
                finished = begun.finished() if begun and state.final else None  # reads the end of a record only
                self.over(cell, state.reason, finished or (folding(begun.events()) if begun else None))
        self._ended = 0

    def running(self, cell: Cell, run: Folding | None = None) -> None:
        """What the cell's run has used by now; None: it has only begun."""
        self.cells[cell] = CellTally(state="running", spend=run.spend if run else self.cells[cell].spend)

    def over(self, cell: Cell, reason: str | None, run: Folding | RunFinished | None) -> None:
        """A process's go at the cell is over, for a reason as in `RunFinished`; None: the process was killed."""
        state: State = "interrupted"
        if is_final(reason):
            state = "solved" if run is not None and run.target_met else "unsolved"
            self._ended += 1
        elif reason is not None and reason.startswith("error:"):
            state = "failed"
        self.cells[cell] = CellTally(state=state, spend=run.spend if run else self.cells[cell].spend)

    def close(self) -> None:
        """The sweep's clock stands still from now on."""
        self._until = time.time()

    @property
    def _here_s(self) -> float:
        return (self._until or time.time()) - self._since

    @property
    def wall_s(self) -> float:
        """Seconds that processes have worked on the sweep."""
        return self._earlier_s + self._here_s

    @property
    def spend(self) -> Spend:
        """Of all cells together; `wall_s` is not the sweep's."""
        return total(tally.spend for tally in self.cells.values())

    def count(self, state: State, model: str | None = None) -> int:
        return sum(t.state == state and model in (None, cell.model) for cell, t in self.cells.items())

    @property
    def left(self) -> int:
        """Cells without a result."""
        return sum(tally.state not in ("solved", "unsolved") for tally in self.cells.values())

    @property
    def eta_s(self) -> float | None:
        """Seconds that are left at the pace of this process; None before its first cell has ended."""
        return self._here_s / self._ended * self.left if self._ended else None
