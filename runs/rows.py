"""One row per run: what metrics, reports and exports need of a record, and nothing of its texts.

Records are read one event at a time, so that hundreds of them need little memory.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from harness.errors import RingsmithError, UsageError
from harness.types import Evaluation, Frozen, Measurement, Mechanism, Ratio, Verdict
from problems import catalogue
from problems.spec import ProblemError
from runs.events import RunConfig, Spend, ToolReturned
from runs.fold import Folding, Run
from runs.record import Record

Mode = Literal["compile", "shape", "API typo", "runtime", "mismatch", "deadlock", "refused", "no candidate"]
"""How a run failed, in ParallelKernelBench's words. The last two are not among them: `refused` is a cheat or forbidden
use of the host, `no candidate` a run that never evaluated anything."""

MODES: dict[Verdict, Mode] = {
    Verdict.compile_error: "compile",
    Verdict.shape_error: "shape",
    Verdict.api_error: "API typo",
    Verdict.runtime_error: "runtime",
    Verdict.out_of_memory: "runtime",
    Verdict.wrong_values: "mismatch",
    Verdict.race: "mismatch",
    Verdict.deadlock: "deadlock",
    Verdict.timeout: "deadlock",
    Verdict.integrity: "refused",
    Verdict.policy: "refused",
}
"""ParallelKernelBench's failure mode of each verdict but `passed`."""

Figure = Literal["headline", "eager", "device"]
"""Which speed-up: `headline` is the device's if it could be had, else the eager one (as in a run's target)."""

Outcome = Literal["sample", "fault", "unfinished"]
"""`sample`: the run says something about its model. `fault`: it ended by an error of provider, machine or harness.
`unfinished`: interrupted, killed or still running. Only samples are counted in metrics."""


class ProblemKey(Frozen):
    """What is counted as one problem: the same workload at two sizes is two."""

    suite: str = ""
    problem: int
    case: str


class Progress(Frozen):
    """A correct candidate during a run that was faster than all before it, and what had been spent by then."""

    step: int
    tokens: int
    usd: float
    wall_s: float
    device_s: float
    eager: Ratio | None = None
    device: Ratio | None = None


class Row(Frozen):
    run_id: str
    path: str
    config: RunConfig
    name: str
    family: str
    """`unknown` if the suite's files are not on this machine."""
    outcome: Outcome
    reason: str
    """As in `RunFinished`; empty without an end."""
    sample: int | None = None
    """From 1, by start, among the samples of this configuration and problem; None for what is no sample."""
    verdict: Verdict | None
    """Of the official evaluation; without one (no candidate was correct) of the last that failed in the run."""
    mode: Mode | None
    """None if it is correct."""
    eager: Ratio | None = None
    device: Ratio | None = None
    candidate_us: float | None = None
    """Best latency known, as is `reference_us`: the device's if it could be had."""
    reference_us: float | None = None
    sol_us: float | None = None
    sol_fraction: float | None = None
    bound_by: str = ""
    mechanisms: tuple[Mechanism, ...] = ()
    uses_nccl: bool = False
    devices: tuple[str, ...] = ()
    attempts: int
    """Evaluated ones."""
    spend: Spend
    progress: tuple[Progress, ...] = ()
    """Begins with the first correct candidate."""
    started_at: float
    """Unix time in seconds."""

    @property
    def problem(self) -> ProblemKey:
        return ProblemKey(suite=self.config.suite, problem=self.config.problem, case=self.config.case)

    @property
    def correct(self) -> bool:
        return self.verdict is Verdict.passed

    def ratio(self, figure: Figure = "headline") -> Ratio | None:
        """The official speed-up; None if it is not correct or has no such figure."""
        return pick(self.eager, self.device, figure)

    def faster_than(self, p: float, figure: Figure = "headline", *, margin: float = 0.0, raw: bool = False) -> bool:
        """Whether it is correct and faster than `p`; see `faster`."""
        return self.correct and faster(self.ratio(figure), p, margin=margin, raw=raw)


def pick(eager: Ratio | None, device: Ratio | None, figure: Figure) -> Ratio | None:
    if figure == "headline":
        return device or eager
    return eager if figure == "eager" else device


def faster(ratio: Ratio | None, p: float, *, margin: float = 0.0, raw: bool = False) -> bool:
    """Whether the lower bound of the interval is above `p * (1 + margin)`. `raw`: the point estimate instead, which is
    ParallelKernelBench's rule and lets noise count as a success in half of all ties."""
    if ratio is None:
        return False
    return (ratio.value if raw else ratio.low) > p * (1.0 + margin)


class Loaded(Frozen):
    rows: tuple[Row, ...]
    """By start."""
    unreadable: tuple[str, ...] = ()
    """One line per record that cannot be read."""

    @property
    def samples(self) -> list[Row]:
        return [row for row in self.rows if row.outcome == "sample"]


def load(paths: Sequence[Path]) -> Loaded:
    """The rows of all runs under the paths: records, folders of records, sweeps. A record that two of them name counts
    once. Raises UsageError for a path with no run in it."""
    found = {record.path.resolve(): record for path in paths for record in records(path)}
    rows, unreadable = [], []
    for record in found.values():
        try:
            rows.append(read(record))
        except (RingsmithError, OSError) as error:
            unreadable.append(str(error))
    return Loaded(rows=tuple(_numbered(rows)), unreadable=tuple(unreadable))


def records(path: Path) -> Sequence[Record]:
    """The runs that a path means. Raises UsageError if there are none."""
    if is_sweep(path):
        found = list(Record.list(path / "runs"))
    elif (path / "events.jsonl").is_file():
        found = [Record.open(path)]
    else:
        inside = Record.list(path)
        found = [child for child in inside if not is_sweep(child.path)]
        found += [record for child in inside if is_sweep(child.path) for record in Record.list(child.path / "runs")]
    if not found:
        raise UsageError(f"{path}: neither a run, nor a sweep, nor a folder of them")
    return found


def is_sweep(path: Path) -> bool:
    """A sweep has a plan, events of its own, and its runs' records in `runs/`."""
    return (path / "plan.json").is_file()


def read(record: Record) -> Row:
    """The row of one record, without its sample's number. Raises UsageError if it is none."""
    events = record.events()
    started = record.started()
    next(events)
    state, progress = Folding(started), list[Progress]()
    for event in events:
        state.add(event)
        if isinstance(event, ToolReturned) and event.evaluation is not None and event.evaluation.passed:
            _note(progress, event, state.spend)
    return _row(state.run(live=False), record.path, tuple(progress))


def _note(progress: list[Progress], event: ToolReturned, spend: Spend) -> None:
    assert event.evaluation is not None
    measured = event.evaluation.measurement
    new = Progress(
        step=event.step,
        tokens=spend.tokens,
        usd=spend.usd,
        wall_s=spend.wall_s,
        device_s=spend.device_s,
        eager=measured.eager.speedup if measured else None,
        device=measured.device.speedup if measured and measured.device else None,
    )
    if not progress or any(_improves(new, progress, figure) for figure in ("eager", "device")):
        progress.append(new)


def _improves(new: Progress, before: list[Progress], figure: Literal["eager", "device"]) -> bool:
    ratio: Ratio | None = getattr(new, figure)
    known = [old for progress in before if (old := getattr(progress, figure)) is not None]
    return ratio is not None and all(ratio.low > old.low or ratio.value > old.value for old in known)


def _row(run: Run, path: Path, progress: tuple[Progress, ...]) -> Row:
    official, config = run.official, run.config
    verdict = official.verdict if official else _last_failure(run)
    outcome = _outcome(run)
    name, family = described(config.suite, config.problem)
    return Row(
        run_id=run.run_id,
        path=str(path),
        config=config,
        name=official.name if official else name,
        family=family,
        outcome=outcome,
        reason=run.reason or "",
        verdict=verdict,
        mode=None if verdict is Verdict.passed else MODES[verdict] if verdict else "no candidate",
        attempts=sum(attempt.verdict is not None for attempt in run.attempts),
        spend=run.spend,
        progress=progress,
        started_at=run.started_at,
        **_measured(official),
    )


def _measured(official: Evaluation | None) -> dict:
    if official is None:
        return {}
    known = {
        "mechanisms": official.mechanisms,
        "uses_nccl": official.uses_nccl,
        "devices": official.environment.devices,
    }
    measured: Measurement | None = official.measurement
    if measured is None:
        return known
    best = measured.device or measured.eager
    return known | {
        "eager": measured.eager.speedup,
        "device": measured.device.speedup if measured.device else None,
        "candidate_us": best.candidate.median_us,
        "reference_us": best.reference.median_us,
        "sol_us": measured.sol_us,
        "sol_fraction": measured.sol_fraction,
        "bound_by": measured.bound_by,
    }


def _last_failure(run: Run) -> Verdict | None:
    verdicts = (attempt.verdict for attempt in reversed(run.attempts))
    return next((verdict for verdict in verdicts if verdict not in (None, Verdict.passed)), None)


def _outcome(run: Run) -> Outcome:
    if run.status != "finished" or run.reason == "interrupted":
        return "unfinished"
    return "fault" if (run.reason or "").startswith("error:") else "sample"


@functools.cache
def described(suite: str, problem: int) -> tuple[str, str]:
    """Name and family, as the catalogue has them; `unknown` if it does not know the problem (a suite elsewhere)."""
    try:
        entry = catalogue.find(problem, suite)
    except ProblemError:
        return "unknown", "unknown"
    return entry.name, entry.family


def _numbered(rows: Iterable[Row]) -> Iterator[Row]:
    seen: dict[tuple[str, int, str], int] = defaultdict(int)
    for row in sorted(rows, key=lambda row: (row.started_at, row.run_id)):
        if row.outcome != "sample":
            yield row
            continue
        key = (row.config.model_dump_json(), row.config.problem, row.config.case)
        seen[key] += 1
        yield row.model_copy(update={"sample": seen[key]})
