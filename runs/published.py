"""What ParallelKernelBench published, to be shown beside measured figures.

Only aggregates were published: in how many of 87 problems the first sample succeeded (@1), and any of three (@3). From
them follow

- pass@1 and fast1@1 of the first samples alone, and pass@3 and fast1@3 of all three, exactly (`expand`);
- failure modes of the first samples, exactly;
- bounds on what the unbiased pass@1 over all three samples would have been (`at_1_bounds`): how many of the three
  succeeded in a problem is not known. Nor can `@1 = 0, @3 = 1`, which is among the figures, come from such an estimate.

They do not give @2, intervals over real problems, or which problems were solved.
"""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

from pydantic import Field, model_validator

from harness.types import Frozen
from runs.rows import Mode

_FILE = Path(__file__).with_name("published.toml")

SAMPLES = 3


class PublishedModel(Frozen):
    name: str
    correct: tuple[int, ...]
    """Problems solved at 1 and at 3 samples (agentic: at 1)."""
    fast1: tuple[int, ...]
    modes: dict[Mode, int] = Field(default_factory=dict)
    """Problems by how their first sample failed."""


class Category(Frozen):
    problems: int
    correct: tuple[int, int]


class Published(Frozen):
    source: str
    problems: int
    models: tuple[PublishedModel, ...]
    agentic: tuple[PublishedModel, ...]
    category_model: str
    categories: dict[str, Category]
    """By family, of `category_model`."""

    @model_validator(mode="after")
    def _adds_up(self) -> Published:
        for model in self.models:
            if model.correct[0] + sum(model.modes.values()) != self.problems:
                raise ValueError(f"{model.name}: modes and correct ones are not {self.problems} problems")
            if any(fast > right for fast, right in zip(model.fast1, model.correct, strict=True)):
                raise ValueError(f"{model.name}: more fast than correct ones")
        whole = next(model for model in self.models if model.name == self.category_model)
        for k in (0, 1):
            if sum(category.correct[k] for category in self.categories.values()) != whole.correct[k]:
                raise ValueError("the categories do not add up to their model")
        return self


@functools.cache
def published() -> Published:
    with _FILE.open("rb") as file:
        data = tomllib.load(file)
    categories = data.pop("categories")
    return Published(**data, category_model=categories.pop("model"), categories=categories)


class Sample(Frozen):
    correct: bool
    fast: bool
    mode: Mode | None = None
    """How it failed, where that was published (first samples)."""


def expand(model: PublishedModel, problems: int) -> list[tuple[Sample, Sample, Sample]]:
    """Three samples for each problem that have the published aggregates. One of many such sets: what is one problem's
    and what is in the second and third sample beyond `any` is made up, so nothing but the aggregates may be read from
    it."""
    modes = [mode for mode, number in model.modes.items() for _ in range(number)]
    found = []
    for i in range(problems):
        right, fast = (i < model.correct[0], i < model.correct[1]), (i < model.fast1[0], i < model.fast1[1])
        first = Sample(correct=right[0], fast=fast[0], mode=None if right[0] else modes[i - model.correct[0]])
        later = Sample(correct=(right[1] and not right[0]) or (fast[1] and not fast[0]), fast=fast[1] and not fast[0])
        found.append((first, Sample(correct=False, fast=False), later))
    return found


def at_1_bounds(at_1: int, at_3: int, problems: int) -> tuple[float, float]:
    """Least and largest value that the unbiased @1 over all three samples can have had, given the published counts: at
    least one success in `at_3` problems, of which `at_1` have it in the first sample."""
    most = SAMPLES * at_1 + (SAMPLES - 1) * (at_3 - at_1)
    return at_3 / (SAMPLES * problems), most / (SAMPLES * problems)
