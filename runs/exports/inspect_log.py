"""Runs as an Inspect log (`.eval`), which `inspect view` and Inspect itself open. Needs the extra `inspect`.

A sample is a run: its id is the problem's name and case, its epoch counts the runs of it. A reply is a model event, a
tool call a tool event, an evaluation an intermediate score, a lane or a context that began anew an info event.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import UsageError
from harness.machine import harness_version
from runs.events import ContextReset, Event, LaneStarted, ModelReplied, RunStarted, ToolReturned, UserMessage
from runs.exports.talks import Talk, talks
from runs.messages import Message, ToolCall, Turn
from runs.record import Record
from runs.rows import Row, Success

if TYPE_CHECKING:
    from inspect_ai.event import Event as InspectEvent
    from inspect_ai.log import EvalLog, EvalSample
    from inspect_ai.model import ChatMessage, ModelUsage
    from inspect_ai.scorer import Score
    from inspect_ai.tool import ToolCall as InspectCall
    from inspect_ai.tool import ToolInfo

_FAST1 = Success(p=1.0)
_LIMITS = {"steps": "message", "tokens": "token", "usd": "cost", "wall_s": "working", "device_s": "custom"}


def write_log(rows: Sequence[Row], title: str, tools: Sequence[dict[str, Any]], folder: Path) -> Path:
    """One log of runs of one configuration, as a file in `folder`; the same runs give the same name. Raises UsageError
    without inspect_ai."""
    try:
        from inspect_ai.log import write_eval_log
    except ImportError:
        raise UsageError("an Inspect log needs inspect_ai: install the extra `inspect`") from None
    folder.mkdir(parents=True, exist_ok=True)
    log = _log(rows, title, tools)
    stamp = log.eval.created[:19].replace(":", "-")
    path = folder / f"{stamp}_{log.eval.task}_{log.eval.task_id}.eval"
    write_eval_log(log, str(path), format="eval")
    return path


def _log(rows: Sequence[Row], title: str, tools: Sequence[dict[str, Any]]) -> EvalLog:
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalPlan, EvalResults, EvalSpec, EvalStats

    config = rows[0].config
    samples = [_sample(row, epoch, tools) for row, epoch in _epochs(rows)]
    ids = list(dict.fromkeys(sample.id for sample in samples))
    usage = _sum([used for sample in samples for used in sample.model_usage.values()])
    counted = [row for row in rows if row.outcome == "sample"]
    identity = hashlib.blake2b("\n".join(row.run_id for row in rows).encode(), digest_size=11).hexdigest()
    return EvalLog(
        status="success",
        eval=EvalSpec(
            eval_id=identity,
            run_id=identity,
            task_id=identity,
            created=_iso(rows[0].started_at),
            task="ringsmith",
            task_args={key: value for key, value in config.model_dump(mode="json").items() if key != "problem"},
            dataset=EvalDataset(name="ParallelKernelBench", samples=len(ids), sample_ids=[str(one) for one in ids]),
            model=config.model,
            config=EvalConfig(epochs=max(sample.epoch for sample in samples)),
            packages={"ringsmith": harness_version()},
            metadata={"configuration": title},
        ),
        plan=EvalPlan(name=config.strategy),
        results=EvalResults(
            total_samples=len(rows),
            completed_samples=len(counted),
            scores=[
                _metric("correct", [row.correct for row in counted]),
                _metric("fast1", [_FAST1.holds(row) for row in counted]),
            ],
        ),
        stats=EvalStats(
            started_at=_iso(rows[0].started_at),
            completed_at=_iso(max(row.started_at + row.spend.wall_s + row.spend.waited_s for row in rows)),
            model_usage={config.model: usage},
        ),
        samples=samples,
    )


def _metric(name: str, values: list[bool]) -> Any:
    from inspect_ai.log import EvalMetric, EvalScore

    mean = sum(values) / len(values) if values else 0.0
    metrics = {"mean": EvalMetric(name="mean", value=mean)}
    return EvalScore(name=name, scorer=name, scored_samples=len(values), metrics=metrics)


def _epochs(rows: Sequence[Row]) -> Iterator[tuple[Row, int]]:
    """Faults have no sample number, and an id may occur once in an epoch."""
    seen: dict[Any, int] = {}
    for row in rows:
        seen[row.problem] = seen.get(row.problem, 0) + 1
        yield row, seen[row.problem]


def _sample(row: Row, epoch: int, tools: Sequence[dict[str, Any]]) -> EvalSample:
    from inspect_ai.log import EvalError, EvalSample, EvalSampleLimit
    from inspect_ai.model import ModelOutput

    record = Record.open(Path(row.path))
    conversations = talks(record.events())
    started: RunStarted = record.started()
    replies = [said.event for talk in conversations for said in talk.entries if isinstance(said.event, ModelReplied)]
    paid = [event.turn for event in (*replies, *(event for talk in conversations for event in talk.judged))]
    last = replies[-1] if replies else None
    limit = row.reason.removeprefix("budget: ") if row.reason.startswith("budget: ") else ""
    bound = getattr(row.config.budget, limit, None) if limit else None
    failed = row.outcome == "fault"
    return EvalSample(
        id=f"p{row.config.problem:02d}_{row.name}/{row.config.case}",
        epoch=epoch,
        input=[_message(message) for message in started.messages],
        target="a correct candidate, faster than the reference",
        messages=[_message(said.message, said.event) for said in conversations[-1].entries],
        output=_output(row.config.model, last) if last else ModelOutput(model=row.config.model),
        scores=_scores(row, record),
        metadata=json.loads(row.model_dump_json(exclude={"path", "progress"})),
        events=sorted(_events(row, conversations, tools), key=lambda event: event.timestamp),
        model_usage={row.config.model: _sum([_usage(turn) for turn in paid])},
        started_at=_iso(row.started_at),
        completed_at=_iso(row.started_at + row.spend.wall_s + row.spend.waited_s),
        total_time=row.spend.wall_s + row.spend.waited_s,
        working_time=row.spend.wall_s,
        error=EvalError(message=row.reason, traceback="", traceback_ansi="") if failed else None,
        limit=EvalSampleLimit(type=_LIMITS[limit], limit=float(bound), reason=row.reason)  # type: ignore[arg-type]
        if bound is not None and limit in _LIMITS
        else None,
    )


def _scores(row: Row, record: Record) -> dict[str, Score]:
    """Of the official evaluation. `speedup` is the point estimate, 0 without one; its interval is in the metadata."""
    from inspect_ai.scorer import Score

    if row.outcome != "sample":
        return {}
    finished = record.finished()
    official = finished.official if finished else None
    source = None
    with suppress(UsageError):  # a record whose candidates were not kept
        source = record.candidate(official.candidate).source if official else None
    ratio = row.ratio()
    metadata = ratio.model_dump() if ratio else None
    said = official.summary if official else f"no candidate was correct ({row.mode})"
    return {
        "correct": Score(value=int(row.correct), answer=source, explanation=said),
        "fast1": Score(value=int(_FAST1.holds(row)), metadata=metadata),
        "speedup": Score(value=ratio.value if ratio else 0.0, metadata=metadata),
    }


def _events(row: Row, conversations: Sequence[Talk], tools: Sequence[dict[str, Any]]) -> Iterator[InspectEvent]:
    from inspect_ai.event import InfoEvent, ScoreEvent, ToolEvent
    from inspect_ai.scorer import Score
    from inspect_ai.tool import ToolCallError

    infos = [_tool_info(tool) for tool in tools]
    for talk in conversations:
        so_far: list[ChatMessage] = []
        for said in talk.entries:
            event, message = said.event, _message(said.message, said.event)
            shared = _when(row, event) if event is not None else {}
            if isinstance(event, ModelReplied):
                yield _model_event(row, event, list(so_far), infos)
            elif isinstance(event, ToolReturned):
                call = _call(event.call)
                yield ToolEvent(
                    id=call.id,
                    function=call.function,
                    arguments=call.arguments,
                    result=event.text,
                    error=None if event.ok else ToolCallError("unknown", event.text),
                    working_time=event.seconds,
                    **shared,
                )
                if (evaluation := event.evaluation) is not None:
                    told = evaluation.model_dump_json(include={"verdict", "stage", "measurement", "findings"})
                    score = Score(
                        value=int(evaluation.passed), explanation=evaluation.summary, metadata=json.loads(told)
                    )
                    yield ScoreEvent(score=score, intermediate=True, scorer="run_benchmark", **shared)
            elif isinstance(event, UserMessage | ContextReset | LaneStarted):
                yield InfoEvent(source=f"ringsmith: {event.kind}", data=event.text, **shared)
            so_far.append(message)
        for judged in talk.judged:
            yield _model_event(row, judged, [_message(one) for one in judged.asked], [])


def _model_event(row: Row, event: ModelReplied, asked: list[ChatMessage], tools: list[ToolInfo]) -> InspectEvent:
    from inspect_ai.event import ModelEvent
    from inspect_ai.model import GenerateConfig

    return ModelEvent(
        model=row.config.model,
        role=event.purpose or None,
        input=asked,
        tools=tools,
        tool_choice="auto" if tools else "none",
        config=GenerateConfig(),
        output=_output(row.config.model, event),
        working_time=event.seconds,
        **_when(row, event),
    )


def _when(row: Row, event: Event) -> dict[str, Any]:
    at = datetime.fromtimestamp(event.at, UTC)
    return {"timestamp": at, "working_start": max(0.0, event.at - row.started_at)}


def _message(message: Message, event: Any = None) -> ChatMessage:
    from inspect_ai.model import ChatMessageAssistant, ChatMessageSystem, ChatMessageTool, ChatMessageUser
    from inspect_ai.tool import ToolCallError

    if message.role == "system":
        return ChatMessageSystem(content=message.text)
    if message.role == "user":
        return ChatMessageUser(content=message.text)
    if message.role == "tool":
        refused = isinstance(event, ToolReturned) and not event.ok
        return ChatMessageTool(
            content=message.text,
            tool_call_id=message.call_id,
            function=message.tool,
            error=ToolCallError("unknown", message.text) if refused else None,
        )
    calls = [_call(call) for call in message.tool_calls] or None
    return ChatMessageAssistant(content=message.text, tool_calls=calls, source="generate")


def _output(model: str, event: ModelReplied) -> Any:
    from inspect_ai.model import ChatCompletionChoice, ModelOutput

    turn = event.turn
    said: Any = _message(Message(role="assistant", text=turn.text, tool_calls=turn.tool_calls))
    choice = ChatCompletionChoice(message=said, stop_reason="tool_calls" if turn.tool_calls else "stop")
    return ModelOutput(model=model, choices=[choice], usage=_usage(turn), time=event.seconds)


def _call(call: ToolCall) -> InspectCall:
    """Arguments that are no JSON object are kept as they came, with the error."""
    from inspect_ai.tool import ToolCall as InspectCall

    try:
        arguments, error = json.loads(call.arguments or "{}"), None
    except ValueError as problem:
        arguments, error = None, str(problem)
    if not isinstance(arguments, dict):
        arguments, error = {"raw": call.arguments}, error or "the arguments are not an object"
    return InspectCall(id=call.id, function=call.name, arguments=arguments, parse_error=error)


def _tool_info(schema: dict[str, Any]) -> ToolInfo:
    from inspect_ai.tool import ToolInfo, ToolParams

    parameters = schema["parameters"]
    return ToolInfo(
        name=schema["name"],
        description=schema["description"],
        parameters=ToolParams(properties=parameters.get("properties", {}), required=parameters.get("required", [])),
    )


def _usage(turn: Turn) -> ModelUsage:
    from inspect_ai.model import ModelUsage

    used = turn.usage
    return ModelUsage(
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        total_tokens=used.input_tokens + used.output_tokens,
        input_tokens_cache_read=used.cached_tokens,
        input_tokens_cache_write=used.cache_write_tokens,
        reasoning_tokens=used.reasoning_tokens,
        total_cost=turn.cost_usd,
    )


def _sum(usages: Sequence[ModelUsage]) -> ModelUsage:
    from inspect_ai.model import ModelUsage

    return sum(usages, start=ModelUsage())


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()
