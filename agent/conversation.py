"""The conversation as a run's events make it: what the model is asked with next, and what is left of the last step.

Live and after a restart it is the same: every event is added once, in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from agent.models.bounds import tokens_of
from agent.shortening import characters, shortened
from runs.events import (
    AgentCalled,
    ContextReset,
    Event,
    LaneStarted,
    ModelReplied,
    PersonActed,
    ResultsShortened,
    RunStarted,
    ToolReturned,
    UserMessage,
)
from runs.messages import Message, ToolCall, Turn, Usage, told_call

CUT = "cut"
"""`Turn.stop` of a reply that was given up, because the budget ended or a person broke it off; its usage is an estimate
where the provider had not told it yet."""


class Conversation:
    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.messages: list[Message] = []
        """What the next request carries."""
        self.replies = 0
        """In this and in earlier lanes."""
        self.judged = 0
        """Replies of the judge, likewise."""
        self.judgement: Turn | None = None
        """The judge's last reply, until the conversation begins anew."""
        self.step = 0
        self.turn: Turn | None = None
        """The last reply; it is paid for."""
        self.returned: list[ToolReturned] = []
        """To the calls of that reply, in their order."""
        self.nudges = 0
        """Replies without a call, in a row, that were answered."""
        self.current: str | None = None
        """Hash of the candidate that was written or measured last."""
        self.last_failure: ToolReturned | None = None
        self.last_profile: ToolReturned | None = None
        self.profiles: dict[str, ToolReturned] = {}
        """The last profile of each candidate, of all lanes, by hash."""
        self.hints: list[str] = []
        """By persons, in this lane."""
        self.news: list[str] = []
        """What persons have said or done since the last tool result, as told."""
        self.beginning: tuple[Message, ...] = ()
        """The run's first messages."""
        self._lane: tuple[Message, ...] = ()
        """The same and what the lane began with: a summary takes the place of what follows."""
        self._nudged = False
        self.called: ToolCall | None = None
        """The last call, if it was not the model's."""
        self._kept = 0
        self._results: list[tuple[int, int]] = []
        """Where in `messages` the whole results are, and the steps of their calls."""
        self._base: int | None = 0
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        match event:
            case RunStarted():
                self.beginning = self._lane = event.messages
                self._anew()
            case ModelReplied(purpose="judge"):
                self.judged, self.judgement = self.judged + 1, event.turn
            case ModelReplied():
                self._replied(event.turn, event.step)
            case AgentCalled():
                # The size of the last request goes on to count.
                usage = self.turn.usage if self.turn is not None else Usage()
                self._replied(Turn(tool_calls=(event.call,), usage=usage), event.step, event.call)
            case ToolReturned():
                self._returned(event)
            case UserMessage():
                self.messages.append(Message(role="user", text=event.text))
                if self.unanswered and not event.topic:
                    self.nudges, self._nudged = self.nudges + 1, True
            case PersonActed():
                self._person(event)
            case ContextReset():
                self._anew(event.text)
            case LaneStarted():
                said = (Message(role="user", text=event.text),) if event.text else ()
                self._lane = (*self.beginning, *said)
                self.turn, self.returned, self.nudges, self._nudged = None, [], 0, False
                self.current, self.last_failure, self.last_profile = event.candidate, None, None
                self.hints, self.news = [], []
                self._anew()
            case ResultsShortened():
                for at, message in self._cut(event.through):
                    self.messages[at] = message
                self._results = [(at, step) for at, step in self._results if step > event.through]
                self._base = None

    @property
    def grown(self) -> int:
        """Tokens that the input has gained since results were shortened last, or since the beginning."""
        return self.turn.usage.input_tokens - self._base if self.turn and self._base is not None else 0

    def gain(self, through: int) -> float:
        """Share of the conversation that is saved if results up to a step are shortened."""
        saved = sum(len(self.messages[at].text) - len(message.text) for at, message in self._cut(through))
        return saved / max(1, characters(self.messages))

    def _cut(self, through: int) -> list[tuple[int, Message]]:
        return [(at, shortened(self.messages[at])) for at, step in self._results if step <= through]

    @property
    def since_reset(self) -> int:
        """Messages after the beginning, or after the summary that took the place of earlier ones."""
        return len(self.messages) - self._kept

    @property
    def pending(self) -> tuple[ToolCall, ...]:
        """Calls of the last reply of which no result is known."""
        return self.turn.tool_calls[len(self.returned) :] if self.turn else ()

    @property
    def expected(self) -> Usage:
        """An estimate of the next request's input: the last one's, its reply and what followed it; of that, as large a
        share from the cache as last time."""
        new = list(takewhile(lambda message: message.role != "assistant", reversed(self.messages)))
        tokens = tokens_of(characters(new))
        last = self.turn.usage if self.turn is not None and len(new) < len(self.messages) else None
        if last is None or not last.input_tokens:
            return Usage(input_tokens=tokens)
        tokens += last.input_tokens + last.output_tokens - last.reasoning_tokens
        grown = tokens / last.input_tokens
        return Usage(
            input_tokens=tokens,
            cached_tokens=int(last.cached_tokens * grown),
            cache_write_tokens=int(last.cache_write_tokens * grown),
        )

    @property
    def unanswered(self) -> bool:
        """Whether the last reply had no call and nothing has been said to that."""
        return self.turn is not None and not self.turn.tool_calls and not self._nudged

    def _anew(self, *summary: str) -> None:
        self.messages = [*self._lane, *(Message(role="user", text=text) for text in summary)]
        self._kept, self.judgement = len(self.messages), None
        self._results, self._base = [], 0

    def _replied(self, turn: Turn, step: int, called: ToolCall | None = None) -> None:
        if called is None and (turn.stop != CUT or turn.text):
            said = Message(role="assistant", text=turn.text, tool_calls=turn.tool_calls, opaque=turn.opaque)
            self.messages.append(said)
        self.replies, self.step, self.turn = self.replies + 1, step, turn
        self.returned, self._nudged, self.called = [], False, called
        if self._base is None:
            self._base = turn.usage.input_tokens
        if turn.tool_calls:
            self.nudges = 0

    def _returned(self, event: ToolReturned) -> None:
        self._results.append((len(self.messages), event.step))
        if self.called is None:
            message = Message(role="tool", text=event.text, call_id=event.call.id, tool=event.call.name)
        else:
            message = told_call(event.call, event.text)
        self.messages.append(message)
        self.returned.append(event)
        self.news = []
        self.current = event.candidate or self.current
        if "profile" in event.data:
            self.last_profile = event
            if event.candidate:
                self.profiles[event.candidate] = event
        if (event.evaluation is not None and not event.evaluation.passed) or "build" in event.data:
            self.last_failure = event

    def _person(self, event: PersonActed) -> None:
        self.current = event.candidate or self.current
        if event.action == "hint":
            self.hints.append(event.text)
        if event.told:
            self.messages.append(Message(role="user", text=event.told))
            self.news.append(event.told)
