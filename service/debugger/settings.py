"""What a session of the debugger is set to: flags, else the run that its candidate comes from, else the machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.errors import UsageError
from problems.catalogue import find, select_case
from runs.events import Budget, RunConfig
from service.options import HERE, Place, resolve

NAME = "external:debugger"
"""`RunConfig.model` of a session; `+MODEL` follows if a model may be asked."""
_WHERE = ("platform", "world_size", "dtype", "backend")
_HOW = ("protocol", "check", "trials", "isolation", "collectives")


def new(flags: Mapping[str, Any], base: RunConfig | None, model: str | None, where: Place = HERE) -> RunConfig:
    """`flags` are those that were given, by their names in `RunConfig`; candidates are evaluated `where` it says.
    Raises UsageError or ProblemError."""
    inherited = base.model_dump() if base is not None else {}
    if "problem" not in flags and base is None:
        raise UsageError("say which problem (`ringsmith problems list`), --from RUN@ATTEMPT, or --resume RUN")
    entry = find(flags.get("problem") or inherited["problem"], flags.get("suite") or inherited.get("suite", ""))
    if (inherited.get("problem"), inherited.get("suite")) != (entry.number, entry.suite):
        inherited.pop("case", None)
    if flags.get("platform") not in (None, inherited.get("platform")):
        # What the other platform was set to says nothing about this one.
        inherited = {name: value for name, value in inherited.items() if name not in _WHERE}
    chosen = {**inherited, **flags}
    platform, world_size, dtype, backend = (chosen.get(name) for name in _WHERE)
    setup = resolve(platform, world_size, dtype, backend, where)
    return RunConfig(
        problem=entry.number,
        suite=entry.suite,
        case=select_case(entry, chosen.get("case") or entry.default).name,
        platform=setup.platform,
        world_size=setup.world_size,
        dtype=setup.dtype,
        backend=setup.backend,
        model=f"{NAME}+{model}" if model else NAME,
        budget=Budget(steps=None),
        sandbox=where.address,
        **{name: chosen[name] for name in _HOW if name in chosen},
    )


def model_of(config: RunConfig) -> str | None:
    """Whom a session may ask. Raises UsageError for a run that is none of the debugger's."""
    if not config.model.startswith(NAME):
        raise UsageError(f"a run of {config.model} is no session of the debugger; --from takes a candidate of it")
    return config.model.removeprefix(NAME).removeprefix("+") or None
