"""What is shown of a run, free of any framework: revisions with their evaluations, the transcript, spend against
budget. The one-file page (`exports.page`) and the web page (`service.web`) are both made from it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from harness.profile_types import Profile
from harness.types import BuildReport, Evaluation, Frozen, Verdict
from runs.attempts import Attempt
from runs.events import (
    AgentCalled,
    ContextReset,
    Event,
    LaneStarted,
    ModelReplied,
    PersonActed,
    ResultsShortened,
    RunFinished,
    RunResumed,
    RunStarted,
    ToolReturned,
    UserMessage,
)
from runs.fold import Folding, parted
from runs.messages import ToolCall
from runs.revisions import Revision
from runs.wording import charged

Role = Literal["system", "user", "assistant", "judge", "agent", "person", "loop"]

T = TypeVar("T", bound=Frozen)


@dataclass
class Call:
    """A tool call and, once there is one, its result."""

    id: str
    name: str
    arguments: tuple[tuple[str, str], ...]
    """Name and text of each; one without a name if the model wrote no JSON object."""
    result: str | None = None
    ok: bool = True
    seconds: float = 0.0
    candidate: str | None = None
    """Hash of what it wrote or measured."""
    verdict: Verdict | None = None


@dataclass
class Entry:
    """One entry of the transcript. Its calls get their results later."""

    index: int
    role: Role
    title: str
    """One line of ours."""
    text: str
    at_s: float
    """Since the run began."""
    step: int | None = None
    calls: list[Call] = field(default_factory=list)


@dataclass(frozen=True)
class Used:
    """One dimension of a budget."""

    name: str
    used: float
    limit: float | None
    unit: str = ""
    exact: bool = True
    """False: at least so much was used."""


class View:
    """A run as it is shown, while its events come in."""

    def __init__(self, started: RunStarted) -> None:
        self.state = Folding(started)
        self.run_id = started.run_id
        self.started_at = started.at
        self.prompts_hash = started.prompts_hash
        self.finished: RunFinished | None = None
        self.entries: list[Entry] = []
        self.revisions: list[Revision] = []
        """In the order in which they came about."""
        self._by_key: dict[tuple[int, int], Revision] = {}
        self._open: list[Call] = []
        for message in started.messages:
            title = "The task" if message.role == "user" else "What the model was told first"
            self._entry("system" if message.role == "system" else "user", title, message.text, started.at)

    def add(self, event: Event) -> None:
        """Costs the same for each event, however many there were."""
        known = len(self.state.attempts)
        self.state.add(event)
        for attempt in self.state.attempts[known:]:
            self._tried(attempt, event)
        say = partial(self._entry, at=event.at)
        if isinstance(event, ModelReplied):
            step, turn = event.step, event.turn
            role: Role = "judge" if event.purpose else "assistant"
            title = f"Step {step}" + (f": asked as a {event.purpose}" if event.purpose else "")
            self._open = [_call(call) for call in turn.tool_calls]
            say(role, title, turn.text, step=step, calls=self._open)
        elif isinstance(event, AgentCalled):
            self._open = [_call(event.call)]
            say("agent", f"Step {event.step}", "", step=event.step, calls=self._open)
        elif isinstance(event, ToolReturned):
            self._returned(event)
        elif isinstance(event, PersonActed):
            asked = "a candidate" if event.action == "candidate" else event.action
            say("person", f"A person: {asked}", event.told or event.text, step=event.step)
        elif isinstance(event, UserMessage):
            say("loop", f"Said by the loop{f' ({event.topic})' if event.topic else ''}", event.text)
        elif isinstance(event, ContextReset):
            say("loop", f"The conversation was replaced by this summary ({event.reason})", event.text)
        elif isinstance(event, ResultsShortened):
            say("loop", f"Results up to step {event.through} are shortened from here on", "")
        elif isinstance(event, LaneStarted):
            begins = f"goes on from {event.candidate}" if event.candidate else "begins afresh"
            say("loop", f"Lane {event.lane} {begins}", event.text)
        elif isinstance(event, RunResumed):
            self.finished = None
            say("loop", "Resumed", f"From here on priced by {charged(event.prices)}" if event.prices else "")
        elif isinstance(event, RunFinished):
            self.finished = event
            say("loop", f"Finished: {event.reason}", "")

    @property
    def official(self) -> Evaluation | None:
        return self.finished.official if self.finished else None

    @property
    def best(self) -> Revision | None:
        """The one whose candidate leads."""
        leader = self.state.best
        return self._by_key.get((leader.lane, leader.number)) if leader else None

    def before(self, revision: Revision) -> Revision | None:
        """The one before it in its lane; of a lane's first that goes on from a candidate, that one."""
        if found := self._by_key.get((revision.lane, revision.number - 1)):
            return found
        parent = self.state.lanes[revision.lane - 1].parent
        return next((one for one in self.revisions if one.candidate == parent and one is not revision), None)

    def revision(self, key: str) -> Revision | None:
        lane, _, number = key.rpartition(".")
        return self._by_key.get((int(lane or 1), int(number))) if _is_key(key) else None

    def used(self) -> list[Used]:
        """Every dimension of the budget."""
        spend, budget = self.state.spend, self.state.config.budget
        return [
            Used("steps", spend.steps, budget.steps),
            Used("tokens", spend.tokens, budget.tokens),
            Used("cost", spend.usd, budget.usd, "USD", spend.usd_known),
            Used("working time", spend.wall_s, budget.wall_s, "s"),
            Used("device time", spend.device_s, budget.device_s, "device-s"),
        ]

    def _entry(
        self, role: Role, title: str, text: str, at: float, step: int | None = None, calls: list[Call] | None = None
    ) -> None:
        self.entries.append(Entry(len(self.entries), role, title, text, at - self.started_at, step, calls or []))

    def _returned(self, event: ToolReturned) -> None:
        call = next((one for one in self._open if one.id == event.call.id and one.result is None), None)
        if call is None:  # not of the last reply: shown all the same
            call = _call(event.call)
            self._entry("loop", f"Called at step {event.step}", "", event.at, event.step, [call])
        call.result, call.ok, call.seconds, call.candidate = event.text, event.ok, event.seconds, event.candidate
        if event.evaluation is not None:
            call.candidate, call.verdict = event.evaluation.candidate, event.evaluation.verdict
        build, profile = _read(BuildReport, event.data.get("build")), _read(Profile, event.data.get("profile"))
        of = next((one for one in reversed(self.revisions) if one.candidate == event.candidate), None)
        if of is not None:
            of.build, of.profile = build or of.build, profile or of.profile

    def _tried(self, attempt: Attempt, event: Event) -> None:
        key = (attempt.lane, attempt.number)
        revision = self._by_key.get(key)
        if revision is None:
            revision = Revision(attempt.lane, attempt.number, attempt.candidate, event.at - self.started_at)
            self._by_key[key] = revision
            self.revisions.append(revision)
        revision.attempts.append(attempt)
        if isinstance(event, ToolReturned) and event.evaluation is not None:
            revision.evaluations.append(event.evaluation)


def view(events: Iterable[Event]) -> View:
    """Raises UsageError if they do not begin with `RunStarted`."""
    started, rest = parted(events)
    shown = View(started)
    for event in rest:
        shown.add(event)
    return shown


def _call(call: ToolCall) -> Call:
    try:
        given = json.loads(call.arguments or "{}")
    except ValueError:
        given = None
    if not isinstance(given, dict):
        return Call(call.id, call.name, (("", call.arguments),))
    texts = (
        (_whole(str(name)), _whole(value if isinstance(value, str) else json.dumps(value)))
        for name, value in given.items()
    )
    return Call(call.id, call.name, tuple(texts))


def _whole(text: str) -> str:
    """Without lone surrogates, which JSON can spell and nothing can write."""
    return text.encode(errors="replace").decode()


def _read(kind: type[T], data: Any) -> T | None:
    """None too for what this version cannot read: it is only shown."""
    try:
        return kind.model_validate(data) if data else None
    except ValidationError:
        return None


def _is_key(text: str) -> bool:
    parts = text.split(".")
    return len(parts) <= 2 and all(part.isascii() and part.isdecimal() and len(part) < 9 for part in parts)
