"""Made-up sets of run records, as large as real ones: models that differ in how often and how fast they are right."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

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
from runs.events import Event, ModelReplied, RunFinished, RunStarted, ToolReturned
from runs.fold import folding
from runs.messages import Message, ToolCall, Turn, Usage
from tests.runs.factories import config

FAILURES = [verdict for verdict in Verdict if verdict is not Verdict.passed]
MECHANISMS = ("NCCL", "copy engine", "TMA", "SM loads and stores")
GPUS = Environment(
    platform="cuda", devices=("H200",) * 4, torch="2", python="3.11", harness="0", isolation=("bubblewrap",)
)


def write_set(
    root: Path,
    *,
    models: Sequence[str] = ("maker/large", "maker/small"),
    problems: Sequence[int] = (1, 2, 13),
    samples: int = 3,
    steps: int = 6,
    text_bytes: int = 200,
    faults: int = 1,
    seed: int = 0,
) -> None:
    """`faults` more runs per model end by an error. A step's texts are `text_bytes` long, in several copies each, as a
    provider's raw response and a compiler's log are."""
    draw = random.Random(seed)
    ease = {problem: draw.random() ** 3 for problem in problems}
    for m, model in enumerate(models):
        for problem in problems:
            for sample in range(samples):
                skill = ease[problem] / (1 + 0.8 * m)
                write_run(root, f"{m}-p{problem:02d}-{sample}", model, problem, skill, steps, text_bytes, draw)
        for fault in range(faults):
            write_run(root, f"{m}-fault-{fault}", model, problems[0], 0.5, 2, text_bytes, draw, "error: 503")


def write_run(
    root: Path,
    run_id: str,
    model: str,
    problem: int,
    skill: float,
    steps: int,
    text_bytes: int,
    draw: random.Random,
    reason: str = "budget: steps",
) -> None:
    """A run that is right at a step with chance `skill`, and then faster with every step."""
    at = 1.8e9 + draw.random() * 1e6
    text = "".join(draw.choice('ab cde"fgh\n') for _ in range(500))
    text *= text_bytes // len(text) + 1
    run = config(
        problem=problem, case="pkb", platform="cuda", world_size=4, dtype="bfloat16", backend=Backend.cuda, model=model
    )
    started = RunStarted(
        at=at, run_id=run_id, config=run, prompts_hash="h", messages=(Message(role="system", text=text),)
    )
    events: list[Event] = [started]
    sources: list[str] = []
    for step in range(1, steps + 1):
        at += 60.0
        source = Candidate(source=f"# {run_id} {step}\n{text}", backend=Backend.cuda)
        sources.append(source.source)
        arguments = json.dumps({"source": source.source})
        calls = (
            ToolCall(id=f"{step}w", name="write_candidate", arguments=arguments),
            ToolCall(id=f"{step}b", name="run_benchmark", arguments="{}"),
        )
        turn = Turn(
            text=text,
            tool_calls=calls,
            cost_usd=0.02 * (1 + draw.random()),
            usage=Usage(input_tokens=20_000 + 9_000 * step, cached_tokens=20_000, output_tokens=4_000),
            raw={"output": [{"type": "reasoning", "text": text}, {"type": "tool_use", "input": arguments}]},
        )
        events.append(ModelReplied(at=at, step=step, turn=turn, seconds=50.0))
        events.append(
            ToolReturned(
                at=at + 1, step=step, call=calls[0], ok=True, text="written", seconds=0.1, candidate=source.hash
            )
        )
        right = draw.random() < skill
        verdict = Verdict.passed if right else draw.choice(FAILURES)
        evaluated = _evaluation(source, problem, verdict, 0.6 + 0.25 * step * draw.random(), text, draw)
        events.append(
            ToolReturned(
                at=at + 9,
                step=step,
                call=calls[1],
                ok=True,
                text=text,
                seconds=8.0,
                candidate=source.hash,
                evaluation=evaluated,
                device_s=evaluated.device_s,
            )
        )
    state = folding(events)
    official = None
    if state.best is not None and not reason.startswith("error"):
        official = next(
            e.evaluation
            for e in events
            if isinstance(e, ToolReturned) and e.evaluation and e.evaluation.candidate == state.best.candidate
        )
    events.append(
        RunFinished(
            at=at + 30,
            reason=reason,
            best=state.best.candidate if state.best else None,
            official=official,
            target_met=official is not None,
            spend=state.spend,
        )
    )
    folder = root / run_id
    (folder / "candidates").mkdir(parents=True)
    for text in sources if official is not None else ():
        graded = Candidate(source=text, backend=Backend.cuda)
        if graded.hash == official.candidate:
            (folder / "candidates" / f"{graded.hash}.py").write_text(text)
    with (folder / "events.jsonl").open("w") as file:
        for event in events:
            file.write(json.dumps(event.model_dump(mode="json"), ensure_ascii=False) + "\n")


def _evaluation(
    source: Candidate, problem: int, verdict: Verdict, ratio: float, text: str, draw: random.Random
) -> Evaluation:
    passed = verdict is Verdict.passed
    return Evaluation(
        candidate=source.hash,
        backend=Backend.cuda,
        problem=problem,
        name=f"name {problem}",
        case="pkb",
        sizes={"m": 1024},
        world_size=4,
        dtype="bfloat16",
        check="oracle",
        trials=3,
        verdict=verdict,
        stage=Stage.timing if passed else Stage.correctness,
        summary=f"it {verdict}",
        log="" if passed else text,
        ranks=tuple(
            RankReport(rank=rank, ok=passed, stage=Stage.timing, stderr=text, message="<b>no</b>") for rank in range(4)
        ),
        measurement=_measurement(ratio, draw) if passed else None,
        uses_nccl=draw.random() < 0.3,
        mechanisms=tuple(draw.sample(MECHANISMS, 1 + draw.randrange(2))),
        device_s=32.0,
        environment=GPUS,
    )


def _measurement(ratio: float, draw: random.Random) -> Measurement:
    reference = 100.0

    def timing(speedup: float) -> Timing:
        sides = [
            Latency(median_us=us, p10_us=us, p90_us=us, min_us=us, samples=50, skew_us=1.0)
            for us in (reference / speedup, reference)
        ]
        return Timing(
            candidate=sides[0],
            reference=sides[1],
            speedup=Ratio(value=speedup, low=speedup * 0.97, high=speedup * 1.03),
        )

    return Measurement(
        protocol="ringsmith",
        eager=timing(ratio * 1.2),
        device=timing(ratio),
        sol_us=10 * draw.random() + 1,
        bound_by=draw.choice(("link in", "HBM")),
    )
