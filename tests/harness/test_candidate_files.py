"""The candidates say what they are for, and of what the catalogue has, none is missing on either platform."""

from types import SimpleNamespace

import pytest

from harness.types import Backend, Ratio, Verdict
from problems import catalogue
from tests import candidates

EVERY = {f"{letter}{i}" for letter, last in {"A": 11, "B": 9, "C": 7, "D": 12}.items() for i in range(1, last + 1)}
# B8 is about CUDA graphs, C6 a flag, D10 legal.
NOT_ON_CPU = {"B8", "C6", "D10"}
# C2, C3 and C7, about other processes and files, are the same on both platforms and are tried on cpu. B6 is what forged
# clocks come to, D9 the harness's own duty.
NOT_ON_CUDA = {"B6", "C2", "C3", "C7", "D9", "D10"}


def rows(platform):
    return {row for example in candidates.folder("evil", platform) for row in example.rows}


def test_every_row_has_a_candidate():
    assert rows("cpu") == EVERY - NOT_ON_CPU
    assert rows("cuda") == EVERY - NOT_ON_CUDA


def test_verdicts_and_problems_are_known():
    numbers = {entry.number for entry in catalogue.entries()}
    for platform in ("cpu", "cuda"):
        evil, honest = (candidates.folder(kind, platform) for kind in ("evil", "honest"))
        assert len(evil) >= 40 and len(honest) >= 15
        assert {example.problem for example in evil + honest} <= numbers
        assert all(example.evil for example in evil)
        assert all(example.expected == (Verdict.passed,) for example in honest)


def test_a_docstring_is_read(tmp_path):
    path = tmp_path / "p02_x.py"
    path.write_text('"""Late.\n\nCatalogue: A3, B8\nExpected: race or integrity\nStage: timing\n"""\n')
    example = candidates.read(path, Backend.cuda)
    assert (example.problem, example.case, example.timing) == (2, "pkb", True)
    assert example.rows == ("A3", "B8") and example.expected == (Verdict.race, Verdict.integrity) and example.evil


@pytest.mark.parametrize(("layer", "low", "right"), [("x", 0.8, True), ("x", 1.4, False), ("y", 0.8, False)])
def test_a_cheat_passes_only_where_it_is_harmless_and_gains_nothing(tmp_path, layer, low, right):
    path = tmp_path / "p01_x.py"
    path.write_text('"""Burns.\n\nCatalogue: B7\nExpected: integrity\nHarmless: x\n"""\n')
    example = candidates.read(path, Backend.cpp)
    timing = SimpleNamespace(speedup=Ratio(value=2.0, low=low, high=3.0))
    told = SimpleNamespace(
        verdict=Verdict.passed,
        passed=True,
        measurement=SimpleNamespace(device=None, eager=timing),
        environment=SimpleNamespace(isolation=(layer,)),
    )
    assert example.evil and example.right(told) is right
    told.measurement = None
    assert not example.right(told)
    told.verdict, told.passed = Verdict.integrity, False
    assert example.right(told)
    path.write_text('"""Burns.\n\nCatalogue: B7\nExpected: integrity\n"""\n')
    told.verdict, told.passed = Verdict.passed, True
    assert not candidates.read(path, Backend.cpp).right(told)
