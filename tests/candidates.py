"""What a file in `tests/evil/` or `tests/honest/` says about itself in its docstring.

    Catalogue: A3, B8           rows of the catalogue of cheats (docs/integrity.md)
    Expected: race or integrity     verdicts that are right; none for an honest candidate
    Harmless: own control group     where this layer of the jail is on the cheat comes to nothing: it may pass, if it is
                                timed and no faster
    Stage: timing               it shows only when it is timed
    Case: odd                   sizes at which it shows; default `tiny` on cpu, `pkb` on cuda
    Protocol: pkb               the method of timing by which it shows; default `ringsmith`

The file's name says the problem, `p02_...`; without one it is problem 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from harness.types import BACKENDS, Backend, Candidate, Evaluation, Limits, PlatformName, Request, Verdict

TESTS = Path(__file__).resolve().parent
_NOTHING = 1.1
"""Of a cheat that does as the reference does the interval of speed-ups begins below; a busy machine is not exact."""


@dataclass(frozen=True)
class Example:
    """One candidate and what must come of it."""

    path: Path
    candidate: Candidate
    problem: int
    case: str
    expected: tuple[Verdict, ...]
    rows: tuple[str, ...]
    timing: bool
    protocol: str
    harmless: str

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def evil(self) -> bool:
        return Verdict.passed not in self.expected

    def right(self, evaluation: Evaluation) -> bool:
        """Whether that is what must come of it."""
        if evaluation.verdict in self.expected:
            return True
        measured = evaluation.measurement
        if not evaluation.passed or measured is None or self.harmless not in evaluation.environment.isolation:
            return False
        return (measured.device or measured.eager).speedup.low <= _NOTHING

    @property
    def hangs(self) -> bool:
        return bool({Verdict.deadlock, Verdict.timeout} & set(self.expected))

    def request(self, platform: PlatformName, world_size: int, dtype: str, limits: Limits, **changes) -> Request:
        """`limits` are for those that hang: what torch imports when it meets a dispatch mode takes 4 s on a slow
        machine."""
        limits = limits if self.hangs else Limits()
        settings = {"timing": self.timing, "case": self.case, "trials": 3, "protocol": self.protocol} | changes
        return Request(
            candidate=self.candidate, problem=self.problem, platform=platform, world_size=world_size, dtype=dtype,
            limits=limits, **settings,
        )  # fmt: skip


def read(path: Path, backend: Backend) -> Example:
    source = path.read_text(encoding="utf-8")
    verdicts = tuple(Verdict(word) for word in _field(source, "Expected", "passed").split(" or "))
    number = re.match(r"p(\d+)_", path.name)
    return Example(
        path=path,
        candidate=Candidate(source=source, backend=backend),
        problem=int(number[1]) if number else 1,
        case=_field(source, "Case", "tiny" if backend is Backend.cpp else "pkb"),
        expected=verdicts,
        rows=tuple(re.findall(r"\b[A-D]\d+\b", _field(source, "Catalogue", ""))),
        timing=_field(source, "Stage", "") == "timing",
        protocol=_field(source, "Protocol", "ringsmith"),
        harmless=_field(source, "Harmless", ""),
    )


def folder(kind: str, platform: PlatformName) -> list[Example]:
    """All of `evil` or `honest` for a platform, by name."""
    backend = BACKENDS[platform][0]
    paths = sorted((TESTS / kind / backend.value).glob("*.py"))
    return [read(path, backend) for path in paths]


def _field(source: str, name: str, otherwise: str) -> str:
    found = re.search(rf"^{name}: (.+?)$", source, re.M)
    return found[1].strip() if found else otherwise
