"""Hand-made results: what the doors show needs no ranks."""

from collections.abc import Callable
from typing import Any

import pytest

from harness.types import (
    Backend,
    Candidate,
    Environment,
    Evaluation,
    Latency,
    Measurement,
    RankReport,
    Ratio,
    Stage,
    Timing,
    Verdict,
)
from runs.events import (
    Budget,
    Event,
    ModelReplied,
    RunConfig,
    RunFinished,
    RunStarted,
    Spend,
    ToolReturned,
    UserMessage,
)
from runs.messages import Message, ToolCall, Turn, Usage

GOOD = Candidate(source="def solution(x):\n    return x\n", backend=Backend.cpp)
BAD = Candidate(source="def solution(x):\n    return -x\n", backend=Backend.cpp)


def latency(median_us: float) -> Latency:
    return Latency(
        median_us=median_us,
        p10_us=median_us * 0.9,
        p90_us=median_us * 1.1,
        min_us=median_us * 0.8,
        samples=100,
        skew_us=1.5,
    )


def timing(value: float) -> Timing:
    return Timing(
        candidate=latency(100.0),
        reference=latency(100.0 * value),
        speedup=Ratio(value=value, low=value - 0.1, high=value + 0.1),
    )


def make_evaluation(candidate: Candidate = GOOD, verdict: Verdict = Verdict.passed, **changes: Any) -> Evaluation:
    passed = verdict is Verdict.passed
    fields: dict[str, Any] = {
        "candidate": candidate.hash,
        "backend": candidate.backend,
        "problem": 1,
        "name": "allreduce",
        "case": "tiny",
        "sizes": {"m": 4},
        "world_size": 2,
        "dtype": "float32",
        "check": "oracle",
        "trials": 3,
        "verdict": verdict,
        "stage": Stage.timing if passed else Stage.correctness,
        "summary": "correct" if passed else "3 of 16 elements wrong",
        "ranks": (
            RankReport(rank=0, ok=passed, stage=Stage.correctness),
            RankReport(rank=1, ok=True, stage=Stage.timing),
        ),
        "measurement": Measurement(protocol="ringsmith", eager=timing(1.5), device=timing(1.2)) if passed else None,
        "stage_s": {"build": 1.0},
        "environment": Environment(
            platform="cpu", devices=("cpu",), torch="2.13.0", python="3.11", harness="0.1.0", isolation=("netns",)
        ),
    }
    return Evaluation(**{**fields, **changes})


@pytest.fixture
def evaluation() -> Callable[..., Evaluation]:
    return make_evaluation


@pytest.fixture
def events() -> list[Event]:
    """A run of three steps: a wrong candidate, a refused call, a right candidate; then the official evaluation."""
    config = RunConfig(
        problem=1,
        case="tiny",
        platform="cpu",
        world_size=2,
        dtype="float32",
        backend=Backend.cpp,
        model="replay:somewhere",
        budget=Budget(steps=5, usd=1.0, wall_s=600.0),
    )

    def replied(at: float, step: int, text: str, call: ToolCall) -> ModelReplied:
        turn = Turn(text=text, tool_calls=(call,), usage=Usage(input_tokens=100, output_tokens=10), cost_usd=0.1)
        return ModelReplied(at=at, step=step, turn=turn, seconds=1.0)

    def returned(at: float, step: int, call: ToolCall, ok: bool, text: str, **more: Any) -> ToolReturned:
        return ToolReturned(at=at, step=step, call=call, ok=ok, text=text, seconds=1.0, **more)

    first, second, third = (ToolCall(id=f"c{n}", name="run_benchmark", arguments="{}") for n in range(3))
    wrong = make_evaluation(BAD, Verdict.wrong_values)
    return [
        RunStarted(
            at=1000.0,
            run_id="20261121-101500-p01-allreduce-3f2a",
            config=config,
            prompts_hash="0" * 16,
            messages=(Message(role="system", text="You write kernels."),),
        ),
        replied(1010.0, 1, "Start simple.\nOne copy per peer.", first),
        returned(1020.0, 1, first, True, "wrong values on rank 0", candidate=BAD.hash, evaluation=wrong, device_s=4.0),
        UserMessage(at=1021.0, text="Go on."),
        replied(1030.0, 2, "", second),
        returned(1040.0, 2, second, False, "run_benchmark: no argument 'fast'"),
        replied(1050.0, 3, "Two shots [bold red]now[/]\x1b[2J", third),
        returned(1060.0, 3, third, True, "passed", candidate=GOOD.hash, evaluation=make_evaluation(), device_s=4.0),
        RunFinished(
            at=1070.0,
            reason="submitted",
            best=GOOD.hash,
            official=make_evaluation(),
            target_met=True,
            spend=Spend(steps=3, tokens=330, usd=0.3, wall_s=70.0, device_s=12.0),
        ),
    ]
