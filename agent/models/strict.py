"""A run held against a recorded one while it goes on: a recording as a regression test of everything but the model.

Compared is what does not hang on the machine or the moment: settings, the task, calls, whether each was right,
candidates, verdicts and the kinds of findings. Figures never are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any

from agent.models.base import ModelError
from runs.events import Event, RunFinished, RunStarted, ToolReturned
from runs.messages import Message

_SETTINGS = (
    "problem", "suite", "case", "platform", "world_size", "dtype", "backend", "protocol", "check", "trials",
    "collectives",
)  # fmt: skip
_MACHINE = re.compile(r"^# Machine, as measured\n.*?(?=^# |\Z)", re.MULTILINE | re.DOTALL)
_FIGURE = re.compile(r"\d[\d.,]*")
_STATEMENT = re.compile(r"^```python\n.*?^```", re.MULTILINE | re.DOTALL)


class DiffersError(ModelError):
    """A strict replay went another way than its recording."""


class Comparison:
    """Call it with each event of the run, in order. Raises DiffersError at the first difference, except for one in
    `RunStarted`, which is raised by `begin`: the record shall have a beginning and an end."""

    def __init__(self, recorded: Iterable[Event]) -> None:
        self._started: RunStarted | None = None
        self._finished: RunFinished | None = None
        self._left: list[ToolReturned] = []
        for event in recorded:
            if isinstance(event, RunStarted):
                self._started = event
            elif isinstance(event, ToolReturned):
                self._left.append(event)
            elif isinstance(event, RunFinished):
                self._finished = event
        self._left.reverse()
        self._step, self._call = 0, 0
        self._difference: DiffersError | None = None

    def begin(self) -> None:
        """Before the first reply. Raises DiffersError if the run began otherwise."""
        if self._difference is not None:
            raise self._difference

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunStarted) and self._started is not None:
            self._difference = _first(_beginning(self._started, event), "at the beginning")
        elif isinstance(event, ToolReturned):
            self._call = self._call + 1 if event.step == self._step else 1
            self._step = event.step
            if not self._left:  # the recorded run ended before this call returned
                return
            where = f"at step {event.step}, call {self._call} ({event.call.name})"
            self._difference = _first(_result(self._left.pop(), event), where)
            self.begin()
        elif isinstance(event, RunFinished) and self._difference is None:
            self._end(event)

    def _end(self, event: RunFinished) -> None:
        if event.reason == "interrupted" or event.reason.startswith("error:"):
            return
        if self._left:
            missing = self._left[-1]
            raise DiffersError(
                f"the replay differs at the end: the run ended ({event.reason}) before the recorded call of "
                f"{missing.call.name} at step {missing.step}"
            )
        recorded = self._finished.official if self._finished else None
        if recorded is not None:
            verdict = event.official.verdict if event.official else None
            if difference := _first([("verdict", recorded.verdict, verdict)], "in the official evaluation"):
                raise difference


def _first(compared: Iterable[tuple[str, Any, Any]], where: str) -> DiffersError | None:
    for name, recorded, now in compared:
        if recorded != now:
            return DiffersError(f"the replay differs {where}: {name} is {_short(now)}, recorded {_short(recorded)}")
    return None


def _short(value: Any) -> str:
    text = ", ".join(value) or "none" if isinstance(value, list) else "none" if value is None else str(value)
    text = " ".join(text.split())
    return text if len(text) <= 100 else text[:100] + " ..."


def _beginning(recorded: RunStarted, now: RunStarted) -> Iterator[tuple[str, Any, Any]]:
    for name in _SETTINGS:
        yield name, getattr(recorded.config, name), getattr(now.config, name)
    yield "roles", [m.role for m in recorded.messages], [m.role for m in now.messages]
    for old, new in zip(recorded.messages, now.messages, strict=True):
        if recorded.prompts_hash == now.prompts_hash:
            yield from _lines(f"the {new.role} message", old, new)
        else:
            # The prompts have been edited since: what is left to compare is the workload.
            yield f"code in the {new.role} message", _statement(old), _statement(new)


def _lines(name: str, recorded: Message, now: Message) -> Iterator[tuple[str, Any, Any]]:
    """Line by line, so that the one that differs is shown."""
    old, new = (_FIGURE.sub("#", _MACHINE.sub("", m.text)).splitlines() for m in (recorded, now))
    for line, other in zip_longest(old, new):
        yield f"a line of {name}", line, other


def _statement(message: Message) -> str | None:
    found = _STATEMENT.search(message.text)
    return found[0] if found else None


def _result(recorded: ToolReturned, now: ToolReturned) -> Iterator[tuple[str, Any, Any]]:
    yield "step", recorded.step, now.step
    for (name, old), (_, new) in zip(_stable(recorded), _stable(now), strict=True):
        yield name, old, new
    for what, old, new in zip(("build", "evaluation", "other case"), _parts(recorded), _parts(now), strict=True):
        # Records from before there were findings have no such field.
        if old is not None and new is not None and "findings" in old:
            yield f"findings of the {what}", _causes(old), _causes(new)


def _stable(event: ToolReturned) -> Iterator[tuple[str, Any]]:
    yield "tool", event.call.name
    yield "arguments", event.call.arguments
    yield "ok", event.ok
    yield "candidate", event.candidate
    build, evaluation, other = (part.get("verdict") if part else None for part in _parts(event))
    yield "verdict of the build", build
    yield "verdict", evaluation
    yield "verdict at the other case", other


def _parts(event: ToolReturned) -> tuple[dict[str, Any] | None, dict[str, Any] | None, dict[str, Any] | None]:
    """What was found, as the record has it: build, evaluation, evaluation at another case than the run's."""
    evaluation = event.evaluation
    found = evaluation.model_dump(include={"verdict", "findings"}, exclude_unset=True) if evaluation else None
    return event.data.get("build"), found, event.data.get("other_case")


def _causes(part: dict[str, Any]) -> list[str]:
    return sorted({finding["cause"] for finding in part.get("findings") or ()})
