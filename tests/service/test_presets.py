"""`ringsmith run --preset`: what it resolves to, what wins over it, and where it is refused."""

import sys
from types import ModuleType

import pytest

from harness import machine
from harness.types import MECHANISMS, Mechanism
from runs.fold import fold
from service import cli, presets


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], events):
    """Call `ringsmith run` with arguments; gives the resolved configuration (None if refused), exit code and stderr."""

    def call(*arguments: str, platform: str = "cuda"):
        seen = []

        def run_one(config, *, root, on_event, on_text, access):
            seen.append(config)
            return fold(events)

        fake = ModuleType("service.run")
        fake.run_one = run_one
        monkeypatch.setitem(sys.modules, "service.run", fake)
        monkeypatch.setattr(machine, "default_platform", lambda: platform)
        code = cli.main(["run", "13", "--model", "replay:x", *arguments])
        return (seen[0] if seen else None), code, capsys.readouterr().err

    return call


def test_pkb_agentic_is_their_setting(resolved) -> None:
    config, code, said = resolved("--preset", "pkb-agentic")
    assert code == 0 and said == ""
    assert (config.strategy, config.budget.steps, config.dtype, config.check, config.protocol) == (
        "loop",
        20,
        "bfloat16",
        "pkb",
        "pkb",
    )
    assert (config.world_size, config.case, config.platform, config.backend) == (4, "pkb", "cuda", "cuda")


@pytest.mark.parametrize("before", [True, False])
def test_flags_that_are_given_win(resolved, before: bool) -> None:
    flags = ["--gpus", "2", "--strategy", "lanes:4", "--steps", "40", "--case", "tiny", "--usd", "3"]
    preset = ["--preset", "pkb-agentic"]
    config, code, _ = resolved(*(preset + flags if before else flags + preset))
    assert code == 0 and (config.world_size, config.strategy, config.case) == (2, "lanes:4", "tiny")
    assert (config.budget.steps, config.budget.usd, config.dtype, config.check) == (40, 3.0, "bfloat16", "pkb")


def test_without_it_nothing_changes(resolved) -> None:
    config, _, _ = resolved(platform="cpu")
    assert (config.strategy, config.check, config.protocol, config.dtype) == (
        "phased",
        "oracle",
        "ringsmith",
        "float32",
    )


def test_on_cpu_only_if_asked_for(resolved) -> None:
    config, code, said = resolved("--preset", "pkb-agentic", platform="cpu")
    assert config is None and code == 2
    assert "preset pkb-agentic is for cuda" in said and "--platform cpu" in said
    config, code, said = resolved("--preset", "pkb-agentic", "--platform", "cpu")
    assert code == 0 and (config.world_size, config.dtype, config.protocol) == (4, "bfloat16", "pkb")
    assert "compares with no published figure" in said


def test_names_and_help(resolved, capsys) -> None:
    config, code, said = resolved("--preset", "other")
    assert config is None and code == 2 and "no preset 'other'; there are pkb-agentic" in said
    assert cli.main(["run", "--help"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    for name, preset in presets.PRESETS.items():
        assert f"{name}: {preset.about}" in words
    assert "--gpus 4 --case pkb" in words


def test_a_resumed_run_takes_none(resolved, tmp_path) -> None:
    assert cli.main(["run", "--resume", "latest", "--runs-dir", str(tmp_path), "--preset", "pkb-agentic"]) == 2


def test_every_mechanism_is_on_one_platform_or_forbidden() -> None:
    there = [mechanism for platform in MECHANISMS.values() for mechanism in platform]
    assert sorted([*there, "NVLS"]) == sorted(Mechanism.__args__)
