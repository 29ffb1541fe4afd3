"""A fault: one correct candidate, an exact replacement in its text, and what must come of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.types import BACKENDS, Candidate, DType, Evaluation, Limits, PlatformName, Request, Verdict

ROOT = Path(__file__).resolve().parents[2]
CORRECT = "tests/faults/correct"
Kind = Literal["wrong_values", "race", "deadlock", "runtime_error", "compile_error", "api_error"]


@dataclass(frozen=True)
class Fault:
    """One planted mistake."""

    name: str
    base: str
    """File of the correct candidate: its name in `tests/faults/correct`, or a path from the repository's root."""
    replace: tuple[tuple[str, str], ...]
    """(old, new), planted in this order; each old stands exactly once in the text that it is looked for in."""
    kind: Kind
    planted: str
    """What is wrong now, in one sentence. Here and in `names`, `<last>` stands for the last rank's number and `<world>`
    for how many ranks there are."""
    names: str
    """Searched for in each finding's cause and text: there, the finding has named what was planted."""
    expected: tuple[Verdict, ...] = ()
    """Verdicts that are right; empty: the one that the kind is called after."""
    case: str = "tiny"
    dtype: DType = "float32"
    min_ranks: int = 2
    """With fewer ranks the text is still correct, or another fault."""
    platform: PlatformName = "cpu"

    @property
    def path(self) -> Path:
        return ROOT / (self.base if "/" in self.base else f"{CORRECT}/{self.base}")

    @property
    def problem(self) -> int:
        return problem_of(self.path)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return self.expected or (Verdict(self.kind),)

    def source(self) -> str:
        """The base with the fault planted. Raises ValueError if it cannot be."""
        text = self.path.read_text(encoding="utf-8")
        for old, new in self.replace:
            if text.count(old) != 1:
                raise ValueError(f"{self.name}: {old!r} stands {text.count(old)} times in {self.path.name}")
            text = text.replace(old, new)
        return text

    def request(self, world_size: int, limits: Limits) -> Request:
        return request(self.source(), self.problem, self.platform, world_size, limits, case=self.case, dtype=self.dtype)

    def said(self, text: str, world_size: int) -> str:
        """`planted` or `names` for so many ranks."""
        return text.replace("<last>", str(world_size - 1)).replace("<world>", str(world_size))

    def named(self, evaluation: Evaluation) -> int | None:
        """Which finding names what was planted, counted from 1; None if none does."""
        pattern = re.compile(self.said(self.names, evaluation.world_size), re.I | re.S)
        for number, finding in enumerate(evaluation.findings, 1):
            # "ranks 0, 3" names rank 3 as well as "rank 3" does.
            text = re.sub(r"ranks ([\d, ]*\d)", lambda m: "rank " + m[1].replace(", ", ", rank "), finding.text)
            if pattern.search(f"{finding.cause}: {text}"):
                return number
        return None


def problem_of(path: Path) -> int:
    return int(path.name[1:3])


def request(
    source: str, problem: int, platform: PlatformName, world_size: int, limits: Limits, *, case: str, dtype: DType
) -> Request:
    candidate = Candidate(source=source, backend=BACKENDS[platform][0])
    return Request(
        candidate=candidate, problem=problem, platform=platform, world_size=world_size, case=case, dtype=dtype,
        timing=False, limits=limits,
    )  # fmt: skip


def every(*patterns: str) -> str:
    """A regular expression that is found where all of these are, in any order."""
    return "".join(f"(?=.*(?:{pattern}))" for pattern in patterns)
