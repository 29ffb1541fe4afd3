"""Rows from records: of a run, a folder of runs, a sweep. Records are read one event at a time, so that hundreds of
them need little memory."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from harness.errors import RingsmithError, UsageError
from harness.types import Evaluation, Frozen, Measurement, Ratio, Verdict
from problems import catalogue
from problems.spec import ProblemError
from runs.events import CANCELLED, Spend, ToolReturned, is_final
from runs.fold import Folding, Run, parted
from runs.record import Record
from runs.rows import MODES, Outcome, ProblemKey, Progress, Row
from runs.sweep_record import sweeps_in

_T = TypeVar("_T")

UNKNOWN = "unknown"
"""Name and family of a problem whose suite is not on this machine."""
_LARGE_BYTES = 100_000_000
"""From here on reading in parallel is worth the start of processes (half a second each)."""
_MOST_PROCESSES = 4


class Loaded(Frozen):
    rows: tuple[Row, ...]
    """By start."""
    unreadable: tuple[str, ...] = ()
    """One line per record that cannot be read."""

    @property
    def samples(self) -> list[Row]:
        return [row for row in self.rows if row.outcome == "sample"]


def load(paths: Sequence[Path], processes: int = 1) -> Loaded:
    """The rows of all runs under the paths: records, folders of records, sweeps. A record that two of them name counts
    once. Raises UsageError for a path with no run in it.

    With more than one process, large sets are read by that many; the main module must then be importable (`spawn`)."""
    found = all_records(paths)
    if processes > 1 and sum((record.path / "events.jsonl").stat().st_size for record in found) > _LARGE_BYTES:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        with ProcessPoolExecutor(min(processes, _MOST_PROCESSES), get_context("spawn")) as pool:
            read_ones = list(pool.map(_read_or_say, found, chunksize=8))
    else:
        read_ones = [_read_or_say(record) for record in found]
    return Loaded(
        rows=tuple(_numbered(row for row in read_ones if isinstance(row, Row))),
        unreadable=tuple(error for error in read_ones if isinstance(error, str)),
    )


def _read_or_say(record: Record) -> Row | str:
    """The row, or why there is none."""
    try:
        return read(record)
    except (RingsmithError, OSError) as error:
        return str(error)


def records(path: Path) -> Sequence[Record]:
    """The runs that a path means. Raises UsageError if there are none."""
    sweeps = sweeps_in(path)
    own = {sweep.path for sweep in sweeps}
    found = [Record.open(path)] if (path / "events.jsonl").is_file() else list(Record.list(path))
    found = [record for record in found if record.path not in own]
    found += [record for sweep in sweeps for record in Record.list(sweep.runs)]
    if not found and sweeps:
        for sweep in sweeps:
            sweep.plan()  # raises what is wrong with it
        raise UsageError(f"{path}: no run yet in {', '.join(sweep.name for sweep in sweeps)}")
    if not found:
        raise UsageError(f"{path}: neither a run, nor a sweep, nor a folder of them")
    return found


def all_records(paths: Iterable[Path]) -> list[Record]:
    """The runs that the paths mean, each once. Raises UsageError for a path with none."""
    return unique(record for path in paths for record in records(path))


def unique(found: Iterable[Record]) -> list[Record]:
    return list({record.path.resolve(): record for record in found}.values())


def read_each(found: Sequence[Record], make: Callable[[Record], _T], warn: Callable[[str], object]) -> Iterator[_T]:
    """What `make` makes of each record. One that cannot be read is left out and `warn` told why. Raises UsageError if
    none can be."""
    unreadable: list[str] = []
    for record in found:
        try:
            made = make(record)
        except (RingsmithError, OSError) as error:
            unreadable.append(str(error))
            if len(found) > 1:
                warn(str(error))
        else:
            yield made
    if unreadable and len(unreadable) == len(found):
        raise UsageError(f"no run can be read: {unreadable[0]}")


def planned(paths: Sequence[Path], rows: Sequence[Row]) -> tuple[ProblemKey, ...]:
    """All problems that were to be tried, whoever was to: the denominator of every share. Those of the sweeps' plans
    and of the rows. Raises UsageError for a plan that is none."""
    found = {row.problem for row in rows}
    for path in paths:
        for sweep in sweeps_in(path):
            plan = sweep.plan()
            found |= {ProblemKey(plan.suite, problem, case) for problem, case in plan.cases.items()}
    return tuple(sorted(found))


def read(record: Record) -> Row:
    """The row of one record, without its sample's number. Raises UsageError if it is none."""
    started, events = parted(record.events(), str(record.path))
    state, progress = Folding(started), list[Progress]()
    for event in events:
        state.add(event)
        if isinstance(event, ToolReturned) and event.evaluation is not None and event.evaluation.passed:
            _note(progress, event, state.spend)
    return _row(state.run(live=False), record.path, tuple(progress), started.prompts_hash)


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


def _row(run: Run, path: Path, progress: tuple[Progress, ...], prompts_hash: str) -> Row:
    official, config = run.official, run.config
    verdict = official.verdict if official else _last_failure(run)
    outcome = _outcome(run)
    name, family = described(config.suite, config.problem)
    return Row(
        run_id=run.run_id,
        path=str(path),
        config=config,
        name=official.name if official and name == UNKNOWN else name,
        family=family,
        outcome=outcome,
        reason=run.reason or "",
        verdict=verdict,
        mode=None if verdict is Verdict.passed else MODES[verdict] if verdict else "no candidate",
        attempts=run.evaluated,
        spend=run.spend,
        progress=progress,
        started_at=run.started_at,
        prompts_hash=prompts_hash,
        **_measured(official),
    )


def _measured(official: Evaluation | None) -> dict[str, Any]:
    if official is None:
        return {}
    known = {
        "mechanisms": official.mechanisms,
        "uses_nccl": official.uses_nccl,
        "devices": official.environment.devices,
        "harness": official.environment.harness,
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
    if run.helped:
        return "helped"
    if is_final(run.reason) and run.reason != CANCELLED:
        return "sample"
    return "fault" if (run.reason or "").startswith("error:") else "unfinished"


@functools.cache
def described(suite: str, problem: int) -> tuple[str, str]:
    """Name and family, as the catalogue has them; `unknown` if it does not know the problem (a suite elsewhere)."""
    try:
        entry = catalogue.find(problem, suite)
    except ProblemError:
        return UNKNOWN, UNKNOWN
    return entry.name, entry.family


def _numbered(rows: Iterable[Row]) -> list[Row]:
    """By start, with each sample's number: as its sweep numbered it, or counted by start where those numbers are not
    one run's each (single runs, older records, several sweeps of the same)."""
    ordered = sorted(rows, key=lambda row: (row.started_at, row.run_id))
    alike: dict[str, list[Row]] = defaultdict(list)
    for row in ordered:
        if row.outcome == "sample":
            alike[row.config.model_dump_json(exclude={"sample", "sandbox"})].append(row)
    numbers: dict[str, int] = {}
    for samples in alike.values():
        recorded = [row.config.sample for row in samples]
        distinct = len(set(recorded)) == len(recorded)
        numbers |= {row.path: recorded[i] if distinct else i + 1 for i, row in enumerate(samples)}
    return [row.model_copy(update={"sample": numbers.get(row.path)}) for row in ordered]
