"""Runs as chat messages in OpenAI's form, one JSON document a line, for supervised or reinforcement training."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from harness.errors import UsageError
from runs.events import ToolReturned
from runs.exports.talks import Said, talks
from runs.loading import read
from runs.messages import Message, ToolCall
from runs.record import Record

Steps = Literal["final", "all"]


def chat_lines(record: Record, tools: Sequence[dict[str, Any]], steps: Steps) -> Iterator[str]:
    """`all`: every conversation that the model had in the run (several where a lane or its context began anew), whole.
    `final`: the beginning and one call that writes the graded candidate, whatever way it came about; nothing if there
    is none.

    Verdicts, speed-ups and spend are in `metadata`, never in the messages. Raises UsageError for a broken record.
    """
    row = read(record)
    facts = json.loads(row.model_dump_json(exclude={"path", "progress", "sample"})) | {"steps": steps}
    shown = [{"type": "function", "function": tool} for tool in tools]
    if steps == "final":
        if (message := _graded(record)) is not None:
            messages = [*record.started().messages, message]
            yield _line([_openai(one) for one in messages], shown, facts)
        return
    conversations = talks(record.events())
    for number, talk in enumerate(conversations, start=1):
        place = {"conversation": number, "conversations": len(conversations), "lane": talk.lane}
        part = place | {"trajectory": talk.steps}
        yield _line([_openai(one) for one in _answered(talk.entries)], shown, facts | part)


def _graded(record: Record) -> Message | None:
    finished = record.finished()
    if finished is None or finished.official is None:
        return None
    source = record.candidate(finished.official.candidate).source
    call = ToolCall(id="final", name="write_candidate", arguments=json.dumps({"source": source}))
    return Message(role="assistant", tool_calls=(call,))


def _answered(entries: list[Said]) -> Iterator[Message]:
    """The messages. Of a reply some of whose calls were never made, because the run ended, only the calls that were: a
    call without an answer before another's answer is no valid conversation."""
    made: dict[int, list[ToolCall]] = {}
    reply = -1
    for i, said in enumerate(entries):
        if said.message.role == "assistant":
            reply = i
        elif isinstance(said.event, ToolReturned) and said.message.role == "tool":
            made.setdefault(reply, []).append(said.event.call)
    for i, said in enumerate(entries):
        calls = made.get(i)
        if calls is not None and len(calls) < len(said.message.tool_calls):
            yield said.message.model_copy(update={"tool_calls": tuple(calls)})
        else:
            yield said.message


def _openai(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.call_id, "content": message.text}
    if message.role != "assistant":
        return {"role": message.role, "content": message.text}
    said: dict[str, Any] = {"role": "assistant", "content": message.text or None}
    if message.tool_calls:
        said["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    elif not message.text:
        said["content"] = ""
    return said


def _line(messages: list[dict[str, Any]], tools: list[dict[str, Any]], metadata: dict[str, Any]) -> str:
    try:
        return json.dumps({"messages": messages, "tools": tools, "metadata": metadata}, allow_nan=False)
    except ValueError as error:
        raise UsageError(f"run {metadata['run_id']} cannot be written as JSON: {error}") from None
