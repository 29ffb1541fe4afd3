"""Finding problems, choosing cases, and cutting the statement out of a file."""

from dataclasses import replace
from pathlib import Path

import pytest

from problems import catalogue
from problems.catalogue import entries, find, load, select_case, statement
from problems.spec import ProblemError

FILE = '''\
"""A docstring with a backslash: \\\\n."""

from __future__ import annotations

import math
import os.path
from functools import partial, wraps

import torch
import torch.distributed as dist

from problems.spec import Problem

UNUSED = 3
# Why two.
SCALE: float = 2.0
FACTOR = SCALE * math.pi


def helper(x: torch.Tensor) -> torch.Tensor:
    """Doubles."""
    return partial(torch.mul, FACTOR)(x)


def only_inputs_need_this() -> str:
    return os.path.sep


@torch.no_grad()
def reference(x: torch.Tensor) -> torch.Tensor:
    work = helper(x)  # a local that is named like a hidden function
    return work


def inputs(case, ctx):
    dist.barrier()
    return only_inputs_need_this(), wraps


def work(case, world_size, element_bytes):
    return UNUSED


PROBLEM = Problem(reference=reference, inputs=inputs, work=work)
'''

SHOWN = '''\
"""A docstring with a backslash: \\\\n."""
from __future__ import annotations
import math
from functools import partial
import torch

# Why two.
SCALE: float = 2.0

FACTOR = SCALE * math.pi


def helper(x: torch.Tensor) -> torch.Tensor:
    """Doubles."""
    return partial(torch.mul, FACTOR)(x)


@torch.no_grad()
def reference(x: torch.Tensor) -> torch.Tensor:
    work = helper(x)  # a local that is named like a hidden function
    return work
'''


@pytest.mark.parametrize("query", [13, "13", " p13 ", "gemm_allreduce", "GEMM-allreduce", "p13_gemm_allreduce"])
def test_find_takes_numbers_and_names(query: str | int) -> None:
    assert find(query).path.name == "p13_gemm_allreduce.py"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("gemm_alreduce", "near: 13 gemm_allreduce"),
        ("rms", "near: 18 tp_rms_norm"),
        (9_999, "near: "),
        ("zzzzzz", "no name is similar"),
    ],
)
def test_find_suggests_near_matches_in_one_line(query: str | int, message: str) -> None:
    with pytest.raises(ProblemError) as raised:
        find(query)
    assert str(raised.value).startswith(f"no problem {str(query)!r}; {message}")
    assert "\n" not in str(raised.value)


def test_entries_are_sorted_and_load_by_number() -> None:
    numbers = [entry.number for entry in entries()]
    assert numbers == sorted(numbers)
    with pytest.raises(ProblemError):
        load(9_999)


def test_select_case_names_the_cases_there_are() -> None:
    entry = find(13)
    assert select_case(entry, "pkb")["k"] == 512
    with pytest.raises(ProblemError, match=r"problem 13 .* no case 'huge'; it has pkb, large, odd, tiny"):
        select_case(entry, "huge")


def test_statement_keeps_what_the_reference_needs(tmp_path: Path) -> None:
    path = tmp_path / "p99_example.py"
    path.write_text(FILE, encoding="utf-8")
    shown = statement(replace(find(1), path=path))
    assert [line for line in shown.splitlines() if line] == [line for line in SHOWN.splitlines() if line]


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        ("", r"p99_broken.py: no PROBLEM = Problem\(...\)"),
        ("PROBLEM = Problem(title='x', family=print)", "p99_broken.py: PROBLEM has no literal 'family'"),
        (
            "PROBLEM = Problem(title='x', family='f', source='s', tags=(), cases={}, tolerance='loose')",
            "p99_broken.py: tolerance 'loose' is not one of exact, rounding",
        ),
    ],
)
def test_a_broken_declaration_is_named(
    declaration: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p99_broken.py").write_text(declaration, encoding="utf-8")
    monkeypatch.setattr(catalogue, "_FOLDER", tmp_path)
    with pytest.raises(ProblemError, match=message):
        entries()
