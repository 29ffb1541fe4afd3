"""A lane: a part of a run in which the model and its tools know of nothing before. Most runs are one lane."""

from __future__ import annotations

from runs.attempts import Attempt, Leader
from runs.events import LaneStarted, Spend


class Lane:
    def __init__(self, started: LaneStarted | None = None, before: Spend | None = None) -> None:
        """`started`: None for a run's first; `before`: what the run had used."""
        self.number = started.lane if started else 1
        self.before = before or Spend()
        self.parent: str | None = started.candidate if started else None
        """Hash of the candidate that it goes on from."""
        self.attempts: list[Attempt] = []
        """With the parent's best as the first."""
        self.last_topic = ""
        """What a strategy spoke of last."""
        self._leader = Leader()
        self._spoken: dict[str, tuple[int, int]] = {}

    @property
    def best(self) -> Attempt | None:
        return self._leader.best

    def add(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)
        self._leader.add(attempt)

    def spoke(self, topic: str) -> None:
        """A strategy said something."""
        evaluated = sum(attempt.verdict is not None for attempt in self.attempts)
        number = self.attempts[-1].number if self.attempts else 0
        self._spoken[topic] = (number, evaluated)
        self.last_topic = topic

    def attempt_when_said(self, topic: str) -> int | None:
        """Number of the attempt at which a strategy last spoke of it; None if it never did."""
        return self._spoken[topic][0] if topic in self._spoken else None

    def evaluated_when_said(self, topic: str) -> int:
        """The same, of those that were evaluated; 0 if it never did."""
        return self._spoken.get(topic, (0, 0))[1]
