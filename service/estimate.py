"""What a sweep will use, before it begins: by earlier runs of the same model where there are any, else by assumptions
that are said."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from agent import prices
from harness.errors import RingsmithError
from harness.types import Frozen
from runs.events import Budget, RunConfig, Spend, is_final
from runs.messages import Usage
from runs.record import Record
from runs.sweep import Plan
from runs.sweep_record import sweeps_in

INPUT_PER_STEP, OUTPUT_PER_STEP = 15_000, 4_000
"""Tokens of a reply of a model of which there is no record: the conversation so far, mostly from the cache; a kernel
and the thoughts before it. An assumption."""
CACHED = 0.8
"""Share of that input that is read from the provider's cache."""
REPLIES = 20
"""Of a model in a run without a budget of steps."""
EVALUATIONS, SECONDS_ON_DEVICES = 8, 5.0
"""Evaluations of a run that has replies enough, and seconds for which each holds its devices, where no run was recorded
on the platform."""
_MOST_RECORDS = 500


class ModelEstimate(Frozen):
    model: str
    cells: int
    tokens: float
    """All cells together, as the figures below."""
    usd: float | None
    """None: no price is known."""
    basis: str
    """Where the figures come from."""


class Estimate(Frozen):
    cells: int
    models: tuple[ModelEstimate, ...]
    gpu_hours: float
    """Device-hours under lease; on cpu, rank-hours."""
    gpu_basis: str

    @property
    def tokens(self) -> float:
        return sum(model.tokens for model in self.models)

    @property
    def usd(self) -> float | None:
        known = [model.usd for model in self.models if model.usd is not None]
        return sum(known) if len(known) == len(self.models) else None


def estimate(plan: Plan, runs_dir: Path) -> Estimate:
    cells = len(plan.cases) * plan.samples
    config = plan.config(plan.cells()[0])
    earlier = list(_earlier(runs_dir))
    device = [s.device_s for c, s in earlier if (c.platform, c.world_size) == (config.platform, config.world_size)]
    replies = 1 if config.strategy == "single" else (config.budget.steps or REPLIES)
    evaluations = min(EVALUATIONS, replies + 1)  # the official one besides
    each_s = statistics.mean(device) if device else evaluations * SECONDS_ON_DEVICES * config.world_size
    if config.budget.device_s is not None:
        each_s = min(each_s, config.budget.device_s)
    basis = (
        f"mean of {len(device)} earlier runs on {config.platform} with {config.world_size} ranks"
        if device
        else f"assumed: {evaluations} evaluations of {SECONDS_ON_DEVICES:g} s on {config.world_size} devices"
    )
    models = tuple(
        _of_model(name, cells, [spend for c, spend in earlier if c.model == name], config.budget, replies)
        for name in plan.models
    )
    return Estimate(
        cells=cells * len(plan.models),
        models=models,
        gpu_hours=each_s * cells * len(plan.models) / 3600,
        gpu_basis=basis,
    )


def _of_model(name: str, cells: int, earlier: list[Spend], budget: Budget, replies: int) -> ModelEstimate:
    if earlier:
        tokens = statistics.mean(spend.tokens for spend in earlier)
        costs = [spend.usd for spend in earlier if spend.usd_known]
        usd = statistics.mean(costs) if costs else None
        basis = f"mean of {len(earlier)} earlier runs of this model"
    elif ":" in name and not name.startswith("litellm:"):
        tokens, usd, basis = 0.0, 0.0, "not a provider's: costs nothing"
    else:
        tokens, usd = float(replies * (INPUT_PER_STEP + OUTPUT_PER_STEP)), _priced(name, replies)
        basis = (
            f"assumed: {replies} replies of {INPUT_PER_STEP} input tokens, {CACHED:.0%} of them cached, and "
            f"{OUTPUT_PER_STEP} output tokens"
        )
    if budget.tokens is not None and tokens > budget.tokens:
        usd = None if usd is None else usd * budget.tokens / tokens
        tokens = float(budget.tokens)
    if budget.usd is not None and usd is not None and usd > budget.usd:
        tokens, usd = tokens * budget.usd / usd, budget.usd
    return ModelEstimate(
        model=name, cells=cells, tokens=tokens * cells, usd=None if usd is None else usd * cells, basis=basis
    )


def _priced(name: str, replies: int) -> float | None:
    provider, _, model = name.removeprefix("litellm:").partition("?")[0].partition("/")
    usage = Usage(
        input_tokens=INPUT_PER_STEP, cached_tokens=round(CACHED * INPUT_PER_STEP), output_tokens=OUTPUT_PER_STEP
    )
    each = prices.cost_usd(provider, model, usage)
    return None if each is None else each * replies


def _earlier(runs_dir: Path) -> Iterator[tuple[RunConfig, Spend]]:
    """Of runs that ended by themselves, the newest of them, in no sweep and in any. Records that cannot be read are
    left out: an estimate is worth having without them."""
    roots = [runs_dir, *(sweep.runs for sweep in sweeps_in(runs_dir))]
    records = sorted((record for root in roots for record in Record.list(root)), key=lambda r: r.run_id, reverse=True)
    for record in records[:_MOST_RECORDS]:
        try:
            finished = record.finished()
            if finished is not None and is_final(finished.reason):
                yield record.started().config, finished.spend
        except (OSError, RingsmithError):
            continue
