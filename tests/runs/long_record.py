"""A made-up run of many steps whose candidates are as large as real ones and change as a model's do."""

from __future__ import annotations

import json
import random
from pathlib import Path

from harness.types import (
    Backend,
    Candidate,
    Difference,
    Evaluation,
    Finding,
    Latency,
    Measurement,
    Mismatch,
    RankReport,
    Ratio,
    Stage,
    Timing,
    Verdict,
)
from runs.events import Budget, ModelReplied, RunFinished, RunStarted, ToolReturned
from runs.fold import Folding
from runs.messages import Message, ToolCall, Turn, Usage
from runs.record import Record
from tests.runs.factories import config
from tests.runs.record_sets import GPUS

SOURCE = Path(__file__).parents[2] / "prompts" / "examples" / "cuda" / "p13_gemm_allreduce.py"
SAID = "The profile says that the ranks wait for each other in the second barrier; I split the buffer in two. " * 8
TOLD = "rank  on device  communicating  computing  both at once    idle  waiting  | back to back (us a call)\n" * 20


def write_long(root: Path, run_id: str = "long", steps: int = 500, seed: int = 0, live: bool = False) -> Record:
    """Every step writes a candidate and benchmarks it; a third are right. `live`: without an end."""
    draw = random.Random(seed)
    lines = SOURCE.read_text().splitlines()
    run = config(
        problem=13,
        platform="cuda",
        world_size=8,
        dtype="bfloat16",
        backend=Backend.cuda,
        model="maker/large",
        budget=Budget(steps=steps, usd=100.0),
    )
    beginning = (Message(role="system", text=TOLD * 3), Message(role="user", text=TOLD * 2))
    started = RunStarted(at=1.8e9, run_id=run_id, config=run, prompts_hash="h", messages=beginning)
    state, at = Folding(started), started.at
    record = Record.create(root, run_id)
    events = [started]
    for step in range(1, steps + 1):
        at += 60.0
        for _ in range(4):
            lines[draw.randrange(len(lines))] = f"    // step {step}: {draw.randrange(10**9)}"
        of = Candidate(source="\n".join(lines) + "\n", backend=Backend.cuda)
        (record.path / "candidates").mkdir(exist_ok=True)
        (record.path / "candidates" / f"{of.hash}.py").write_text(of.source)  # a hundred fsyncs take seconds
        calls = (
            ToolCall(id=f"{step}w", name="write_candidate", arguments=json.dumps({"source": of.source})),
            ToolCall(id=f"{step}b", name="run_benchmark", arguments="{}"),
        )
        usage = Usage(input_tokens=40_000, cached_tokens=36_000, output_tokens=4_000)
        turn = Turn(text=SAID, tool_calls=calls, cost_usd=0.05, usage=usage, raw={"text": SAID})
        evaluated = _evaluation(of, step, draw)
        events += [
            ModelReplied(at=at, step=step, turn=turn, seconds=50.0),
            ToolReturned(at=at + 1, step=step, call=calls[0], ok=True, text="written", seconds=0.1, candidate=of.hash),
            ToolReturned(
                at=at + 9,
                step=step,
                call=calls[1],
                ok=True,
                text=TOLD,
                seconds=8.0,
                candidate=of.hash,
                evaluation=evaluated,
                device_s=64.0,
            ),
        ]
    for event in events[1:]:
        state.add(event)
    if not live:
        best = state.best.candidate if state.best else None
        official = next(
            (e.evaluation for e in events[1:] if getattr(e, "evaluation", None) and e.evaluation.candidate == best),
            None,
        )
        events.append(
            RunFinished(
                at=at + 30, reason="budget: steps", best=best, official=official, target_met=True, spend=state.spend
            )
        )
    with (record.path / "events.jsonl").open("w") as file:
        for event in events:
            file.write(json.dumps(event.model_dump(mode="json"), ensure_ascii=False) + "\n")
    return record


def _evaluation(of: Candidate, step: int, draw: random.Random) -> Evaluation:
    right = draw.random() < 0.35
    verdict = Verdict.passed if right else draw.choice([Verdict.wrong_values, Verdict.race, Verdict.deadlock])
    wrong = Mismatch(
        trial=0,
        output="out",
        shape=(4096, 4096),
        wrong=1000,
        total=4096 * 4096,
        nonfinite=0,
        max_error=1.5,
        max_allowed=0.01,
        rms_error=0.4,
        rms_allowed=0.001,
        first=(Difference(index=(0, 1), got=1.0, expected=2.0),),
        chunks_wrong=tuple(draw.random() for _ in range(8)),
    )
    return Evaluation(
        candidate=of.hash,
        backend=Backend.cuda,
        problem=13,
        name="gemm_allreduce",
        case="pkb",
        sizes={"m": 4096},
        world_size=8,
        dtype="bfloat16",
        check="oracle",
        trials=3,
        verdict=verdict,
        stage=Stage.timing if right else Stage.correctness,
        summary="" if right else "all ranks: 1000 of 16777216 elements of out wrong; largest error 1.5, allowed 0.01",
        findings=() if right else (Finding(cause="rank left out", text="rank 3's part is missing everywhere"),),
        ranks=tuple(
            RankReport(
                rank=rank,
                ok=right,
                stage=Stage.correctness,
                calls_completed=2,
                message="" if right else "wrong values",
                mismatches=() if right else (wrong,),
            )
            for rank in range(8)
        ),
        measurement=_measurement(0.7 + step / 400 + 0.1 * draw.random()) if right else None,
        mechanisms=("SM loads and stores",),
        device_s=64.0,
        environment=GPUS,
    )


def _measurement(ratio: float) -> Measurement:
    def timing(speedup: float) -> Timing:
        one, other = (
            Latency(median_us=us, p10_us=us * 0.98, p90_us=us * 1.05, min_us=us * 0.97, samples=50, skew_us=1.0)
            for us in (100.0 / speedup, 100.0)
        )
        return Timing(
            candidate=one, reference=other, speedup=Ratio(value=speedup, low=speedup * 0.97, high=speedup * 1.03)
        )

    return Measurement(
        protocol="ringsmith", eager=timing(ratio * 1.2), device=timing(ratio), sol_us=12.0, bound_by="link in"
    )
