"""Small hand-made evaluations and configurations."""

from __future__ import annotations

from typing import Any

from harness.types import (
    Backend,
    Candidate,
    Environment,
    Evaluation,
    Latency,
    Measurement,
    Ratio,
    Stage,
    Timing,
    Verdict,
)
from runs.events import RunConfig

ENVIRONMENT = Environment(platform="cpu", devices=("cpu",), torch="2", python="3.11", harness="0", isolation=())


def config(**changed: Any) -> RunConfig:
    given: dict[str, Any] = {
        "problem": 1,
        "case": "pkb",
        "platform": "cpu",
        "world_size": 2,
        "dtype": "float32",
        "backend": Backend.cpp,
        "model": "scripted",
    }
    return RunConfig(**{**given, **changed})


def candidate(text: str = "def solution(x): return x\n") -> Candidate:
    return Candidate(source=text, backend=Backend.cpp)


def timing(low: float) -> Timing:
    latency = Latency(median_us=10, p10_us=9, p90_us=11, min_us=8, samples=50, skew_us=1)
    return Timing(candidate=latency, reference=latency, speedup=Ratio(value=low + 0.1, low=low, high=low + 0.2))


def measurement(eager: float, device: float | None = None) -> Measurement:
    """With these lower bounds of the speed-ups."""
    return Measurement(
        protocol="ringsmith", eager=timing(eager), device=None if device is None else timing(device), sol_us=5.0
    )


def evaluation(
    of: Candidate | None = None,
    verdict: Verdict = Verdict.passed,
    measured: Measurement | None = None,
    device_s: float = 2.0,
) -> Evaluation:
    return Evaluation(
        candidate=(of or candidate()).hash,
        backend=Backend.cpp,
        problem=1,
        name="allreduce",
        case="pkb",
        sizes={"n": 4},
        world_size=2,
        dtype="float32",
        check="oracle",
        trials=3,
        verdict=verdict,
        stage=Stage.timing if verdict is Verdict.passed else Stage.correctness,
        summary=f"it {verdict}",
        measurement=measured,
        device_s=device_s,
        environment=ENVIRONMENT,
    )
