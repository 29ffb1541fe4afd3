"""A session over hand-made results: what the tools say needs no ranks."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.types import BuildReport, Limits, Verdict
from problems import catalogue
from tools.session import Session


class RecordedSandbox:
    """Answers as a sandbox would; `answers` are given in turn."""

    platform_name, world_size, limits = "cpu", 2, Limits()

    def __init__(self):
        self.answers, self.asked = [], []

    def _answer(self, *asked):
        self.asked.append(asked)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer(asked[0]) if callable(answer) else answer

    def compile(self, candidate, *, allowance):
        return self._answer(candidate)

    def evaluate(self, request, on_stage=None, *, allowance):
        return self._answer(request)

    def profile(self, request, folder, kernel="", *, allowance):
        return self._answer(request, folder, kernel)


@pytest.fixture
def sandbox():
    return RecordedSandbox()


@pytest.fixture
def session(sandbox, tmp_path: Path):
    entry = catalogue.find(1)
    return Session(
        sandbox=sandbox,
        entry=entry,
        case=catalogue.select_case(entry, "tiny"),
        dtype="float32",
        backend="cpp",
        protocol="ringsmith",
        check="oracle",
        trials=2,
        traces_dir=tmp_path,
    )


@pytest.fixture
def report():
    def make(candidate, verdict: Verdict | None = None, summary: str = "built", **more):
        return BuildReport(candidate=candidate.hash, verdict=verdict, summary=summary, **more)

    return SimpleNamespace(make=make)
