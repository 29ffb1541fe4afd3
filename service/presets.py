"""Settings by one name, `ringsmith run --preset NAME`: flags that are given win over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import typer

from harness.errors import UsageError
from harness.types import PlatformName


@dataclass(frozen=True)
class Preset:
    about: str
    platform: PlatformName
    """That its figures are meant for."""
    flags: Mapping[str, object]
    """By parameter of `ringsmith run`."""


PRESETS = {
    "pkb-agentic": Preset(
        about="ParallelKernelBench's agentic setting",
        platform="cuda",
        flags={
            "strategy": "loop",
            "steps": 20,
            "dtype": "bfloat16",
            "check": "pkb",
            "protocol": "pkb",
            "world_size": 4,
            "case": "pkb",
        },
    ),
}


def listed() -> str:
    """The presets in words, for a help text."""
    flags = {name: " ".join(f"--{_flag(key)} {value}" for key, value in p.flags.items()) for name, p in PRESETS.items()}
    return "; ".join(f"{name}: {preset.about} ({flags[name]})" for name, preset in PRESETS.items())


def begin(context: typer.Context, name: str | None) -> str | None:
    """Callback of `--preset`, before other flags are read: its values become their defaults."""
    if name is not None:
        if name not in PRESETS:
            raise typer.BadParameter(f"no preset {name!r}; there are {', '.join(PRESETS)}")
        context.default_map = dict(PRESETS[name].flags)
    return name


def check(name: str, platform: PlatformName, asked_for: bool) -> None:
    """`asked_for`: the platform was named, not chosen. Raises UsageError where the preset makes no sense."""
    preset = PRESETS[name]
    if platform == preset.platform:
        return
    if not asked_for:
        raise UsageError(
            f"preset {name} is for {preset.platform}, and this machine would run on {platform}: name --platform "
            f"{platform} to try its settings there all the same"
        )
    typer.echo(f"preset {name} on {platform}: what comes of it compares with no published figure", err=True)


def _flag(parameter: str) -> str:
    return "gpus" if parameter == "world_size" else parameter.replace("_", "-")
