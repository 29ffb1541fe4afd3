"""From what a user asks for, by flags or in a TOML file, to a sweep's plan."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from agent import models
from agent.models.base import require_price
from agent.prompt import folder_hash
from harness import machine
from harness.errors import UsageError
from harness.sandboxes import Access, checked
from problems.catalogue import Entry, entries, find
from runs.events import Budget, RunConfig
from runs.sweep import Plan
from service import presets
from service.asked import Settings
from service.options import Place


class Wanted(Settings):
    """The keys of a plan file; a flag of the same name wins. What is None was not given."""

    name: str | None = None
    preset: str | None = None
    """Its settings, where neither file nor flags say otherwise (`service.presets`)."""
    problems: str | tuple[str | int, ...] | None = None
    models: str | tuple[str, ...] | None = None
    samples: int = Field(default=1, ge=1)
    sandbox: str = ""
    sweep_usd: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    sweep_tokens: int | None = Field(default=None, ge=1)
    sweep_gpu_hours: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    sweep_wall: float | None = Field(default=None, ge=1.0, allow_inf_nan=False)
    concurrency: int = Field(default=16, ge=1, le=1000)
    retries: int = Field(default=2, ge=0, le=20)

    def caps(self) -> Budget:
        """Limits of all runs together."""
        hours = self.sweep_gpu_hours
        return Budget(
            steps=None,
            tokens=self.sweep_tokens,
            usd=self.sweep_usd,
            wall_s=self.sweep_wall,
            device_s=None if hours is None else hours * 3600,
        )


def wanted(file: Path | None, flags: Mapping[str, Any]) -> Wanted:
    """`flags` are those that were given. Raises UsageError, naming the key, for a file that cannot be, and for a preset
    that there is none of."""
    read: dict[str, Any] = {}
    if file is not None:
        try:
            read = tomllib.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"cannot read the plan {file}: {error.strerror or error}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"the plan {file} is not TOML: {error}") from None
    said = read | dict(flags)
    preset = said.get("preset")
    try:
        return Wanted.model_validate(dict(presets.flags(str(preset)) if preset is not None else {}) | said)
    except ValidationError as error:
        problem = error.errors()[0]
        key = str(problem["loc"][0])
        where = f"the plan {file}: " if key in read and key not in flags else ""
        wrong = "no such key" if problem["type"] == "extra_forbidden" else problem["msg"]
        raise UsageError(f"{where}{key}: {wrong}") from None


def make_plan(asked: Wanted, name: str, access: Access | None = None) -> Plan:
    """The plan of a sweep that has none yet; `access` is to a node whose platform is to be had. Raises UsageError or
    ProblemError for what cannot be."""
    if asked.problems is None or asked.models is None:
        raise UsageError(f"sweep {name} does not exist yet: say --problems and --models, or --plan FILE")
    return _grid(asked, name, select(asked.problems, asked.suite), model_names(asked.models), access=access)


def widen(plan: Plan, asked: Wanted, given: frozenset[str]) -> Plan:
    """A sweep's plan with what is asked for now. `given` are the keys that were said: all others are as they were.

    Raises UsageError, naming the fields, for another meaning of its cells."""
    old = plan.config(plan.cells()[0])
    asked = asked.model_copy(update={k: v for k, v in _as_wanted(plan, old).items() if k not in given})
    problems = select(tuple(plan.cases) if asked.problems is None else asked.problems, asked.suite)
    # A problem keeps the case that it was begun with, whatever its default is by now.
    cases = {} if "case" in given else plan.cases
    return plan.widened(_grid(asked, plan.name, problems, model_names(asked.models or plan.models), cases))


def select(said: str | Sequence[str | int], suite: str) -> list[Entry]:
    """`all`, or numbers, names, ranges (`8-12`), `family:NAME` and `tag:NAME`, by commas; in order of their numbers.

    Raises UsageError or ProblemError for a part that names nothing."""
    parts = [part.strip() for part in said.split(",")] if isinstance(said, str) else [str(part) for part in said]
    listed = entries(suite)
    found: dict[int, Entry] = {}
    for part in filter(None, parts):
        found |= {entry.number: entry for entry in _select(part, listed, suite)}
    if not found:
        raise UsageError("no problem is named")
    return [found[number] for number in sorted(found)]


def _select(part: str, listed: list[Entry], suite: str) -> list[Entry]:
    if part == "all":
        return listed
    kind, colon, name = part.partition(":")
    if colon and kind in ("family", "tag"):
        chosen = [e for e in listed if (e.family == name if kind == "family" else name in e.tags)]
        if not chosen:
            known = sorted({e.family for e in listed} if kind == "family" else {tag for e in listed for tag in e.tags})
            raise UsageError(f"no problem of {part}; there are {', '.join(known)}")
        return chosen
    first, dash, last = part.partition("-")
    if dash and first.isdigit() and last.isdigit():
        chosen = [entry for entry in listed if int(first) <= entry.number <= int(last)]
        if not chosen:
            raise UsageError(f"no problem in {part}")
        return chosen
    return [find(part, suite)]


def model_names(said: str | Sequence[str]) -> list[str]:
    """The models that a plan names, each once."""
    names = [name.strip() for name in said.split(",")] if isinstance(said, str) else list(said)
    return list(dict.fromkeys(filter(None, names)))


def _grid(
    asked: Wanted,
    name: str,
    problems: Sequence[Entry],
    names: Sequence[str],
    cases: Mapping[int, str] | None = None,
    access: Access | None = None,
) -> Plan:
    """`cases` of problems that need not have their default."""
    if not names:
        raise UsageError("no model is named")
    place = Place(checked(asked.sandbox), access)
    setup = asked.setup(place)
    configs = [
        asked.config(setup, entry, model, case=(cases or {}).get(entry.number), sample=sample, sandbox=place.address)
        for entry in problems
        for model in names
        for sample in range(1, asked.samples + 1)
    ]
    return Plan.make(configs, name, folder_hash(), machine.harness_version())


def _as_wanted(plan: Plan, config: RunConfig) -> dict[str, Any]:
    """The keys of a plan file that would give this plan, problems and models apart."""
    budget = config.budget
    same = (
        "suite", "platform", "world_size", "dtype", "backend", "protocol", "check", "trials", "isolation",
        "collectives", "timing", "strategy", "context_tokens", "sandbox",
    )  # fmt: skip
    return {name: getattr(config, name) for name in same} | {
        "samples": plan.samples,
        "steps": budget.steps,
        "tokens": budget.tokens,
        "usd": budget.usd,
        "wall": budget.wall_s,
        "device_seconds": budget.device_s,
        "speedup_target": config.target.speedup,
    }


def check_models(plan: Plan, sweep_usd: float | None) -> None:
    """Raises UsageError for a model that cannot be asked here, or whose price a limit in USD needs and nobody knows:
    before the first cell is paid for."""
    for name in plan.models:
        for problem in plan.cases:
            require_price(models.make(name, problem=problem), plan.common["budget"]["usd"], sweep_usd)
            if not name.startswith("scripted:"):
                break
