"""A sweep on stderr: a live table on a terminal, else a line per cell; and its summary."""

from __future__ import annotations

import time

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from harness.wording import one_line, ratio_text
from runs.attempts import headline
from runs.fold import Folding
from runs.sweep import Cell, Plan
from runs.wording import duration
from service.estimate import Estimate
from service.render import spent
from service.tally import STATES, Tally
from service.text import columns

_CAPS = {"usd": "--sweep-usd", "tokens": "--sweep-tokens", "device_s": "--sweep-gpu-hours", "wall_s": "--sweep-wall"}
"""The flag by which a cap is given."""
_EVERY_S = 0.5
_LINE_EVERY_S = 60.0


class SweepProgress:
    """As `service.sweep.Watch` wants it; `close` when no more will come."""

    def __init__(self, console: Console, plan: Plan) -> None:
        self._console, self._plan = console, plan
        self._running: dict[Cell, str] = {}
        self._live: Live | None = None
        self._shown = time.monotonic()
        if console.is_terminal:
            self._live = Live(
                console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()

    def started(self, cell: Cell, run_id: str, attempt: int, resumed: bool) -> None:
        again = f", attempt {attempt}" if attempt > 1 else ""
        self._print(f"{one_line(str(cell))}: {'goes on' if resumed else 'begins'} as {run_id}{again}", "dim")

    def ended(self, cell: Cell, reason: str, state: Folding | None) -> None:
        self._print(f"{one_line(str(cell))}: {one_line(reason, 200)}; {_result(state)}")

    def tick(self, tally: Tally) -> None:
        now = time.monotonic()
        if self._live is not None and now - self._shown >= _EVERY_S:
            self._shown = now
            self._live.update(Group(_table(tally, self._plan), Text(progress_line(tally))), refresh=True)
        elif self._live is None and now - self._shown >= _LINE_EVERY_S:
            self._shown = now
            self._print(progress_line(tally), "dim")

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style))


def _result(state: Folding | None) -> str:
    """The official evaluation's where there is one: what counts."""
    if state is None or state.best is None:
        return "no correct candidate"
    if (official := state.run().official) is not None:
        measured = official.measurement
        return f"official {ratio_text(headline(measured)) if measured else official.verdict.value}"
    measured = state.best.measurement
    return f"best {ratio_text(headline(measured)) if measured else 'correct, not timed'}"


def _table(tally: Tally, plan: Plan) -> Table:
    table = Table("model", *STATES)
    for model in plan.models:
        table.add_row(Text(one_line(model, 60)), *(str(tally.count(state, model)) for state in STATES))
    return table


def progress_line(tally: Tally) -> str:
    """`12 of 72 cells ended, 9 solved, 4 running; ...; about 12 min left`."""
    cells = len(tally.cells)
    left = f"; about {duration(tally.eta_s)} left" if tally.eta_s is not None and tally.left else ""
    failed = f", {tally.count('failed')} failed for no fault of the model's" if tally.count("failed") else ""
    return (
        f"{cells - tally.left} of {cells} cells ended, {tally.count('solved')} solved, {tally.count('running')} running"
        f"{failed}; {spent(tally.spend.model_copy(update={'wall_s': tally.wall_s}))}{left}"
    )


def summary(plan: Plan, tally: Tally, reason: str) -> str:
    """How the sweep stands: cells by model and state, what it has used."""
    states = [state for state in STATES if tally.count(state)]
    rows = [("MODEL", *(state.upper() for state in states))]
    rows += [(model, *(str(tally.count(state, model)) for state in states)) for model in plan.models]
    flag = _CAPS.get(reason.removeprefix("cap: "))
    said = f"{one_line(reason, 300)}{f' ({flag})' if flag else ''}"
    return f"sweep {plan.name}: {said}\n{columns(rows)}\n{progress_line(tally)}"


def plan_text(plan: Plan, forecast: Estimate | None) -> str:
    """What will be run and, with a forecast, what it will use."""
    common = plan.common
    cases = sorted(set(plan.cases.values()))
    where = f" at {common['sandbox']}" if common.get("sandbox") else ""
    lines = [
        f"sweep {plan.name}: {len(plan.cases)} problems x {len(plan.models)} models x {plan.samples} samples = "
        f"{len(plan.cells())} runs",
        f"problems: {', '.join(map(str, plan.cases))}; case {', '.join(cases)}",
        f"{common['platform']} x {common['world_size']}{where}, {common['dtype']}, {common['backend']}, check "
        f"{common['check']}, protocol {common['protocol']}, strategy {common['strategy']}",
        f"prompts {plan.prompts_hash}, harness {plan.harness}",
    ]
    if forecast is None:
        return "\n".join(lines)
    rows = [("MODEL", "RUNS", "TOKENS", "USD", "BASIS")]
    for model in forecast.models:
        usd = "unknown" if model.usd is None else f"{model.usd:.2f}"
        rows.append((model.model, str(model.cells), f"{model.tokens:,.0f}", usd, model.basis))
    usd = "unknown" if forecast.usd is None else f"{forecast.usd:.2f}"
    rows.append(("all", str(forecast.cells), f"{forecast.tokens:,.0f}", usd, ""))
    lines += ["expected, of all runs from the first to the last:", columns(rows)]
    lines.append(f"GPU-hours under lease: {forecast.gpu_hours:.2f} ({forecast.gpu_basis})")
    return "\n".join(lines)
