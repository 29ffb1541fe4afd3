"""Records that pages are tried with."""

from __future__ import annotations

import json
from pathlib import Path

from harness.types import Finding, RankReport, Stage, Verdict
from runs.events import ModelReplied, RunConfig, RunFinished, RunStarted, Spend, ToolReturned, UserMessage
from runs.messages import Message, ToolCall, Turn
from runs.record import Record
from runs.sweep import Plan
from runs.sweep_record import sweep_record
from tests.runs.factories import candidate, config, evaluation, measurement
from tests.runs.record_sets import write_set

EVIL = "</script><script>window.owned=1</script><img src=x onerror=window.owned=2>`${window.owned=3}`{{ 6 * 7 }}"
RIGHT = (
    "import torch.distributed as dist\n\n\ndef solution(x):\n    x = x.clone()\n    dist.all_reduce(x)\n    return x\n"
)


def started(run_id: str, **changed: object) -> RunStarted:
    said = (Message(role="system", text="be good"), Message(role="user", text="do it"))
    return RunStarted(at=1.9e9, run_id=run_id, config=config(**changed), prompts_hash="h", messages=said)


def write_hostile(root: Path) -> Record:
    """Everything that a model, a candidate or a person can name is an attack on the page."""
    good, bad = candidate(f"x = '''{EVIL}'''\n"), candidate(f"# {EVIL}\nx = 1\n")
    write = ToolCall(id="w", name="write_candidate", arguments=json.dumps({"source": good.source, EVIL: EVIL}))
    bench = ToolCall(id="b", name=f"run{EVIL}", arguments=EVIL)
    rank = RankReport(rank=0, ok=False, stage=Stage.correctness, message=EVIL, stack=EVIL, stderr=EVIL, exit=EVIL)
    finding = Finding(cause=EVIL, text=EVIL, evidence=EVIL)
    failed = evaluation(bad, Verdict.wrong_values).model_copy(
        update={"summary": EVIL, "log": EVIL, "findings": (finding,), "ranks": (rank,)}
    )
    passed = evaluation(good, measured=measurement(1.5))
    with Record.create(root, "evil") as record:
        for one in (good, bad):
            record.save_candidate(one)
        record.append(started(f"evil{EVIL}", model=EVIL, case=EVIL))
        record.append(ModelReplied(at=1.9e9, step=1, turn=Turn(text=EVIL, tool_calls=(write, bench)), seconds=1))
        for call, made in ((write, failed), (bench, passed)):
            record.append(
                ToolReturned(
                    at=1.9e9 + 1,
                    step=1,
                    call=call,
                    ok=True,
                    text=EVIL,
                    seconds=1,
                    candidate=made.candidate,
                    evaluation=made,
                )
            )
        record.append(UserMessage(at=1.9e9 + 2, text=EVIL, topic=EVIL))
        record.append(
            RunFinished(
                at=1.9e9 + 3, reason=f"error: {EVIL}", best=good.hash, official=passed, target_met=True, spend=Spend()
            )
        )
    return record


def write_untimed(root: Path) -> Record:
    """An interrupted run of the smallest case, whose candidate is quickly evaluated."""
    wrong = candidate("def solution(x):\n    return x\n")
    call = ToolCall(id="w", name="write_candidate", arguments=json.dumps({"source": wrong.source}))
    run: dict[str, object] = {"case": "tiny", "timing": False, "trials": 1, "isolation": "none"}
    with Record.create(root, "untimed") as record:
        record.save_candidate(wrong)
        record.append(started("untimed", **run))
        record.append(ModelReplied(at=1.9e9, step=1, turn=Turn(tool_calls=(call,)), seconds=1))
        record.append(
            ToolReturned(at=1.9e9, step=1, call=call, ok=True, text="written", seconds=0, candidate=wrong.hash)
        )
    return record


def write_sweep(root: Path) -> None:
    """A sweep of two runs that have ended and one that has not begun."""
    from runs.sweep import CellEnded, CellStarted

    models = ("maker/large", "maker/small")
    configs = [
        RunConfig.model_validate(config(model=model, sample=sample).model_dump())
        for model in models
        for sample in (1, 2)
    ]
    with sweep_record(root, "first") as sweep:
        sweep.open_to_write()
        plan = Plan.make(configs, "first", "h", "0")
        sweep.lock_plan(plan)
        write_set(sweep.runs, models=models, problems=(1,), samples=1, steps=2, faults=0)
        for cell, run_id in zip(plan.cells()[:2], ("0-p01-0", "1-p01-0"), strict=True):
            sweep.append(CellStarted(at=1.9e9, cell=cell, run_id=run_id, attempt=1))
            sweep.append(CellEnded(at=1.9e9, cell=cell, run_id=run_id, reason="budget: steps"))
