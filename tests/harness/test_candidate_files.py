"""The candidates for cuda say what they are for, and of what the catalogue has, none is missing."""

from pathlib import Path

import pytest

from harness.types import Verdict
from problems import catalogue
from tests import candidates

TESTS = Path(__file__).resolve().parent.parent
EVIL = sorted((TESTS / "evil" / "cuda").glob("*.py"))
HONEST = sorted((TESTS / "honest" / "cuda").glob("*.py"))
# C2 and C3, reading and ending other processes, are the same on both platforms and are tried on cpu; C7 is about files.
# B6 is what forged clocks come to, D9 the harness's own duty, D10 legal.
ELSEWHERE = {"B6", "C2", "C3", "C7", "D9", "D10"}


def test_every_row_has_a_candidate():
    rows = {row for path in EVIL for row in candidates.load(path).rows}
    every = {f"{letter}{i}" for letter, last in {"A": 11, "B": 9, "C": 7, "D": 12}.items() for i in range(1, last + 1)}
    assert rows == every - ELSEWHERE


def test_verdicts_and_problems_are_known():
    numbers = {entry.number for entry in catalogue.entries()}
    assert {candidates.problem(path) for path in EVIL + HONEST} <= numbers
    assert all(candidates.load(path).expected == {Verdict.passed} for path in HONEST)


def test_a_docstring_is_read(tmp_path):
    folder = tmp_path / "evil"
    folder.mkdir()
    path = folder / "p02_x.py"
    path.write_text('"""Late.\n\nCatalogue: A3, B8\nExpected: race or integrity\nStage: timing\n"""\n')
    assert candidates.load(path)[1:] == (("A3", "B8"), {Verdict.race, Verdict.integrity}, "timing")
    assert candidates.problem(path) == 2
    for wrong in ("", "Expected: passed", "Expected: slow"):
        path.write_text(f'"""Late.\n\n{wrong}\n"""\n')
        with pytest.raises(ValueError):
            candidates.load(path)
