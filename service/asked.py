"""What a run or an evaluation is asked for with, as a client or a plan says it, and what it is once all is resolved."""

from __future__ import annotations

from typing import Self

from pydantic import Field

from agent import strategies
from agent.prompt import require_page
from harness.types import (
    Backend,
    Candidate,
    Check,
    CollectivesRule,
    DType,
    Frozen,
    IsolationLevel,
    PlatformName,
    Protocol,
    Request,
)
from problems.catalogue import Entry, find, select_case
from runs.events import Budget, RunConfig, Target
from service import presets
from service.options import HERE, Place, Setup, resolve

MAX_SOURCE = 1_000_000
"""Characters of a candidate that comes over a network."""


class Conditions(Frozen):
    """Where a candidate runs and how it is judged; None: what fits this machine."""

    suite: str = Field(default="", max_length=1000)
    case: str | None = Field(default=None, max_length=200)
    platform: PlatformName | None = None
    world_size: int | None = Field(default=None, ge=1, le=64)
    dtype: DType | None = None
    backend: Backend | None = None
    protocol: Protocol = "ringsmith"
    check: Check = "oracle"
    trials: int = Field(default=3, ge=1, le=100)
    isolation: IsolationLevel = "auto"
    collectives: CollectivesRule = "allow"
    timing: bool = True

    def setup(self, place: Place = HERE) -> Setup:
        """Raises UsageError for what the machine there has not."""
        return resolve(self.platform, self.world_size, self.dtype, self.backend, place)


class Settings(Conditions):
    """Of a run; the defaults are those of `ringsmith run`."""

    steps: int = Field(default=20, ge=1)
    tokens: int | None = Field(default=None, ge=1)
    usd: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    wall: float | None = Field(default=None, ge=1.0, allow_inf_nan=False)
    """Seconds."""
    device_seconds: float | None = Field(default=None, ge=1.0, allow_inf_nan=False)
    speedup_target: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    strategy: str = Field(default="phased", max_length=100)
    context_tokens: int = Field(default=150_000, ge=1000)

    def budget(self) -> Budget:
        return Budget(
            steps=self.steps, tokens=self.tokens, usd=self.usd, wall_s=self.wall, device_s=self.device_seconds
        )

    def config(
        self, setup: Setup, entry: Entry, model: str, *, case: str | None = None, sample: int = 1, sandbox: str = ""
    ) -> RunConfig:
        """`case`: where these settings name none; `sandbox`: an address that has been checked.
        Raises UsageError or ProblemError for what cannot be."""
        require_page(setup.backend)
        strategies.make(self.strategy).check(self.budget())
        return RunConfig(
            problem=entry.number,
            suite=entry.suite,
            case=select_case(entry, self.case or case or entry.default).name,
            platform=setup.platform,
            world_size=setup.world_size,
            dtype=setup.dtype,
            backend=setup.backend,
            model=model,
            protocol=self.protocol,
            check=self.check,
            trials=self.trials,
            isolation=self.isolation,
            collectives=self.collectives,
            budget=self.budget(),
            target=Target(speedup=self.speedup_target),
            strategy=self.strategy,
            context_tokens=self.context_tokens,
            timing=self.timing,
            sample=sample,
            sandbox=sandbox,
        )


class RunAsked(Settings):
    """A run."""

    problem: int | str = Field(union_mode="left_to_right")
    """Number or name."""
    model: str = Field(min_length=1, max_length=1000)
    """PROVIDER/MODEL, PROVIDER/MODEL?effort=LEVEL; where the server allows it replay:PATH or scripted:FOLDER."""
    preset: str | None = Field(default=None, max_length=100)
    """Settings by one name; those that are given win."""

    def resolved(self, place: Place = HERE) -> RunConfig:
        """Raises UsageError or ProblemError for what cannot be."""
        asked = self._with_preset() if self.preset is not None else self
        setup = asked.setup(place)
        if self.preset is not None:
            presets.check(self.preset, setup.platform, asked_for=self.platform is not None)
        return asked.config(setup, find(asked.problem, asked.suite), asked.model)

    def _with_preset(self) -> Self:
        given = self.model_dump(exclude_unset=True)
        return self.model_validate(dict(presets.flags(str(self.preset))) | given)


class EvaluationAsked(Conditions):
    """A candidate to be evaluated without a model."""

    problem: int | str = Field(union_mode="left_to_right")
    """Number or name."""
    source: str | None = Field(default=None, min_length=1, max_length=MAX_SOURCE)
    """A Python module with `solution(*args)`; null: the problem's own reference."""
    soak: int = Field(default=1, ge=1, le=1000)
    """How often correctness and stress are gone through."""

    def resolved(self, place: Place = HERE) -> Request:
        """Raises UsageError or ProblemError for what cannot be."""
        from harness.evaluate import reference_candidate

        entry, setup = find(self.problem, self.suite), self.setup(place)
        return Request(
            candidate=reference_candidate(entry)
            if self.source is None
            else Candidate(source=self.source, backend=setup.backend),
            problem=entry.number,
            suite=entry.suite,
            case=select_case(entry, self.case or entry.default).name,
            platform=setup.platform,
            world_size=setup.world_size,
            dtype=setup.dtype,
            protocol=self.protocol,
            check=self.check,
            trials=self.trials,
            soak=self.soak,
            timing=self.timing,
            collectives=self.collectives,
        )
