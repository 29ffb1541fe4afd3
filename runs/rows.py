"""One row per run: what metrics and reports need of a record, and nothing of its texts. `loading.py` makes them."""

from __future__ import annotations

from functools import cached_property
from typing import Literal, NamedTuple

from harness.types import Frozen, Mechanism, Ratio, Verdict
from runs.events import RunConfig, Spend

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

Outcome = Literal["sample", "fault", "unfinished", "helped"]
"""`sample`: the run says something about its model. `fault`: it ended by an error of provider, machine or harness.
`unfinished`: interrupted, killed, cancelled, ended by a sweep's limit, or still running. `helped`: a person gave a hint
or a candidate. Only samples are counted in metrics."""


class ProblemKey(NamedTuple):
    """What is counted as one problem: the same workload at two sizes is two."""

    suite: str
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
    """From 1, among the samples of this configuration and problem: `RunConfig.sample`, or by start where several have
    the same (`loading.load`); None for what is no sample."""
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
    prompts_hash: str = ""
    harness: str = ""
    """Ringsmith's version at the official evaluation."""

    @cached_property
    def problem(self) -> ProblemKey:
        return ProblemKey(self.config.suite, self.config.problem, self.config.case)

    @property
    def correct(self) -> bool:
        return self.verdict is Verdict.passed

    def ratio(self, figure: Figure = "headline") -> Ratio | None:
        """The official speed-up; None if it is not correct or has no such figure."""
        return _pick(self.eager, self.device, figure)


class Success(Frozen):
    """What counts as one: being correct and, with `p`, faster than that."""

    p: float | None = None
    """None: pass@k. A number: fast_p@k."""
    figure: Figure = "headline"
    margin: float = 0.0
    """Measurement noise to stay clear of, as a share: the speed-up must be above `p * (1 + margin)`."""
    raw: bool = False
    """By the point estimate, which is ParallelKernelBench's rule and makes half of all ties a success, instead of the
    lower bound of the 95% interval."""

    def holds(self, row: Row) -> bool:
        return row.correct and self._fast(row.eager, row.device)

    def reached(self, progress: Progress) -> bool:
        return self._fast(progress.eager, progress.device)

    def _fast(self, eager: Ratio | None, device: Ratio | None) -> bool:
        if self.p is None:
            return True
        ratio = _pick(eager, device, self.figure)
        return ratio is not None and (ratio.value if self.raw else ratio.low) > self.p * (1.0 + self.margin)


CORRECT = Success()


def _pick(eager: Ratio | None, device: Ratio | None, figure: Figure) -> Ratio | None:
    if figure == "headline":
        return device or eager
    return eager if figure == "eager" else device
