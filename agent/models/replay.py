"""A recorded trajectory as a model: its replies are fixed, its tool calls are really executed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agent.models.strict import Comparison
from harness.errors import UsageError
from harness.types import Frozen
from runs.events import Event, ModelReplied
from runs.messages import Message, ToolCall, Turn, Usage
from runs.record import Record

REPLAY_END = "replay_end"
"""`Turn.stop` once the trajectory is used up."""
STRICT = "?strict"
"""Behind a path: the results must agree too."""


class Replay:
    """`path` is a run's folder, its `events.jsonl`, or a file with one turn a line:

    {"text": "...", "tool_calls": [{"name": "...", "arguments": {...} or "raw text"}]}
    """

    def __init__(self, path: Path, *, strict: bool = False) -> None:
        """`strict`: what the tools answer must agree with the recorded run too (`watched`).

        Raises UsageError, naming file and line, if the trajectory cannot be read.
        """
        self.name = f"replay:{path}{STRICT if strict else ''}"
        path = path.expanduser()
        self._comparison: Comparison | None = None
        if path.is_dir() or path.name == "events.jsonl":
            events = list(Record.open(path if path.is_dir() else path.parent).events())
            self._turns, self._judged = _recorded(events)
            self._comparison = Comparison(events) if strict else None
        elif strict:
            raise UsageError(f"{path} has turns only: {STRICT} needs a recorded run to compare with")
        else:
            self._turns, self._judged = _written(path), []
        self._next, self._next_judged = 0, 0

    def priced(self) -> bool:
        return True

    def watched(self, on_event: Callable[[Event], None]) -> Callable[[Event], None]:
        """`on_event`, and if this is strict a comparison of each event with the recorded run."""
        comparison = self._comparison
        if comparison is None:
            return on_event

        def compared(event: Event) -> None:
            on_event(event)
            comparison(event)

        return compared

    def skip(self, replies: int, judged: int = 0) -> None:
        """Leave out what a run that is resumed has heard already, from the model and from the judge."""
        self._next = min(replies, len(self._turns))
        self._next_judged = min(judged, len(self._judged))

    def reply(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Turn:
        if self._comparison is not None:
            self._comparison.begin()
        if not tools:  # only the judge has none; it may be asked at other points than it was then
            self._next_judged += 1
            left = self._judged[self._next_judged - 1 :]
            return left[0] if left else Turn(stop=REPLAY_END, cost_usd=0.0)
        if self._next == len(self._turns):
            return Turn(stop=REPLAY_END, cost_usd=0.0)
        self._next += 1
        return self._turns[self._next - 1]


def _recorded(events: Iterable[Event]) -> tuple[list[Turn], list[Turn]]:
    """What the model said, and the judge, without what it once cost: a replay pays nothing and waits for nobody."""
    turns: list[Turn] = []
    judged: list[Turn] = []
    for event in events:
        if isinstance(event, ModelReplied):
            turn = event.turn.model_copy(update={"usage": Usage(), "cost_usd": 0.0, "waited_s": 0.0, "raw": None})
            (judged if event.purpose else turns).append(turn)
    return turns, judged


class _Call(Frozen):
    name: str
    arguments: dict[str, Any] | str = ""


class _Line(Frozen):
    text: str = ""
    tool_calls: tuple[_Call, ...] = ()


def _written(path: Path) -> list[Turn]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the trajectory {path}: {error}") from None
    return [_turn(line, path, number) for number, line in enumerate(lines, start=1) if line.strip()]


def _turn(line: str, path: Path, number: int) -> Turn:
    try:
        parsed = _Line.model_validate_json(line)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise UsageError(f"{path}, line {number}: {place + ': ' if place else ''}{problem['msg']}") from None
    return Turn(
        text=parsed.text,
        tool_calls=tuple(
            ToolCall(
                id=f"call_{number}_{index}",
                name=call.name,
                arguments=call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments),
            )
            for index, call in enumerate(parsed.tool_calls)
        ),
        cost_usd=0.0,
    )
