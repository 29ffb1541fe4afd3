"""What a model read and wrote in a run, as conversations: one, or as many as its lanes and its context began anew."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from harness.types import to_json
from runs.events import (
    AgentCalled,
    ContextReset,
    Event,
    LaneStarted,
    ModelReplied,
    PersonActed,
    ToolReturned,
    UserMessage,
)
from runs.fold import Folding, parted
from runs.messages import Message, told_call


@dataclass(frozen=True)
class Said:
    """One entry of a conversation and the event that it comes from; None for the beginning."""

    message: Message
    event: ModelReplied | ToolReturned | UserMessage | ContextReset | LaneStarted | None = None


@dataclass
class Talk:
    """A conversation as the model had it before it: its first entries are the run's beginning, what its lane began with
    and, after a reset, the summary of what was before."""

    entries: list[Said] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    """What came of each reply in it, for metadata; see `_step`."""
    lane: int = 1
    judged: list[ModelReplied] = field(default_factory=list)
    """The judge's answers meanwhile: requests of their own, no part of the conversation."""


def talks(events: Iterable[Event]) -> list[Talk]:
    """Raises UsageError if the events do not begin with `RunStarted`."""
    started, rest = parted(events)
    state = Folding(started)
    beginning = run_began = [Said(message) for message in started.messages]
    found = [Talk(list(beginning))]
    by_model = True
    for event in rest:
        state.add(event)
        talk = found[-1]
        if isinstance(event, ModelReplied) and event.purpose:
            talk.judged.append(event)
        elif isinstance(event, ModelReplied):
            by_model, turn = True, event.turn
            message = Message(role="assistant", text=turn.text, tool_calls=turn.tool_calls)
            talk.entries.append(Said(message, event))
            talk.steps.append(_step(event, len(talk.entries) - 1, state))
        elif isinstance(event, AgentCalled):
            by_model = False
        elif isinstance(event, ToolReturned) and not by_model:
            talk.entries.append(Said(told_call(event.call, event.text), event))
        elif isinstance(event, PersonActed) and event.told:
            talk.entries.append(Said(Message(role="user", text=event.told)))
        elif isinstance(event, ToolReturned):
            message = Message(role="tool", text=event.text, call_id=event.call.id, tool=event.call.name)
            talk.entries.append(Said(message, event))
            if talk.steps:
                talk.steps[-1]["calls"].append(_call(event))
                talk.steps[-1]["device_s"] = state.spend.device_s
        elif isinstance(event, UserMessage):
            talk.entries.append(Said(Message(role="user", text=event.text), event))
        elif isinstance(event, ContextReset):
            found.append(Talk([*beginning, Said(Message(role="user", text=event.text), event)], lane=talk.lane))
        elif isinstance(event, LaneStarted):
            said = [Message(role="user", text=event.text)] if event.text else []
            found.append(Talk([*run_began, *(Said(message, event) for message in said)], lane=event.lane))
            beginning = [*run_began, *map(Said, said)]
    return [talk for talk in found if talk.steps or talk.judged] or found[:1]


def _step(event: ModelReplied, message: int, state: Folding) -> dict[str, Any]:
    """`message` is the reply's place in the conversation; tokens, usd and device_s are the run's sums by then."""
    spend = state.spend
    sums = {"tokens": spend.tokens, "usd": spend.usd, "device_s": spend.device_s}
    return {"step": event.step, "message": message, **sums, "calls": []}


def _call(event: ToolReturned) -> dict[str, Any]:
    evaluation = event.evaluation
    found: dict[str, Any] = {"tool": event.call.name, "ok": event.ok}
    if evaluation is None:
        return found | ({"candidate": event.candidate} if event.candidate else {})
    measured = evaluation.measurement
    return found | {
        "candidate": evaluation.candidate,
        "verdict": evaluation.verdict.value,
        "stage": evaluation.stage.value,
        "causes": [finding.cause for finding in evaluation.findings],
        "eager": to_json(measured.eager.speedup) if measured else None,
        "device": to_json(measured.device.speedup) if measured and measured.device else None,
        "sol_fraction": measured.sol_fraction if measured else None,
    }
