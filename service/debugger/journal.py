"""What the debugger shows of a run, from its events as they come in."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from harness.types import Measurement
from runs.events import AgentCalled, Event, ModelReplied, PersonActed, RunFinished, RunStarted, ToolReturned
from runs.fold import Folding
from runs.wording import duration, speedups
from service.render import evaluation_block

WRITES = ("write_candidate", "edit_candidate")
_LINES = (
    re.compile(r"candidate\.py(?:[:(]|, line )(\d{1,7})"),
    re.compile(r"line (\d{1,7}) of candidate\.py"),
    re.compile(r"^  > +(\d{1,7}) \|", re.M),
)
"""How tools name lines of the candidate: as compilers do, and as a mark beside its text."""


@dataclass(frozen=True)
class Result:
    """What tools or a model said last."""

    title: str
    text: str
    candidate: str | None = None
    """Hash of the candidate that was current."""
    lines: frozenset[int] = frozenset()
    """Of that candidate, which it is about."""


@dataclass
class Row:
    """One text of the candidate, with what is known of it by now."""

    number: int
    candidate: str
    by: str
    verdict: str = ""
    measurement: Measurement | None = None
    results: list[Result] = field(default_factory=list)

    def said(self) -> str:
        """`attempt 3 (1234abcd), passed, eager 1.20x [1.10, 1.30]`."""
        known = [self.verdict or "not evaluated", speedups(self.measurement)]
        return ", ".join([f"attempt {self.number} ({self.candidate[:8]})", *filter(None, known)])


class Journal:
    """Give it every event, in order, from one thread at a time; another may read."""

    def __init__(self) -> None:
        self.version = 0
        """Grows with whatever is new."""
        self.run_id = ""
        self.state: Folding | None = None
        self.result = Result(
            "nothing yet", "e edits the candidate, r checks and times it, w shows the task, ? all keys."
        )
        self.rows: list[Row] = []
        self.current: str | None = None
        """Hash of the candidate that tools act on."""
        self.replies = 0
        """Of a model."""
        self.writing = ""
        """The reply that comes in."""
        self._by_model = False

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self.state, self.run_id = Folding(event), event.run_id
        elif self.state is not None:
            self.state.add(event)
        if isinstance(event, AgentCalled):
            self._by_model = False
        elif isinstance(event, ModelReplied):
            self._by_model, self.replies, self.writing = True, self.replies + 1, ""
            said = event.turn.text or ("(broken off)" if event.turn.stop == "cut" else "(says nothing)")
            self.result = Result(f"the model, step {event.step}", said, candidate=self.current)
        elif isinstance(event, ToolReturned):
            self._returned(event)
        elif isinstance(event, PersonActed) and event.candidate is not None:
            self._written(event.candidate, "person")
        elif isinstance(event, RunFinished):
            self._finished(event)
        self.version += 1

    def wrote(self, piece: str, thought: bool) -> None:
        """A piece of a model's reply (`agent.models.base.OnText`)."""
        self.writing += piece
        self.version += 1

    @property
    def best(self) -> str | None:
        """Hash of the best candidate so far."""
        return self.state.best.candidate if self.state is not None and self.state.best is not None else None

    def row(self, number: int) -> Row | None:
        return next((row for row in self.rows if row.number == number), None)

    def _returned(self, event: ToolReturned) -> None:
        if event.call.name in WRITES and event.ok and event.candidate is not None:
            self._written(event.candidate, "model" if self._by_model else "you")
        found = self._result(event)
        row = next((row for row in reversed(self.rows) if row.candidate == found.candidate), None)
        if row is not None:
            row.results = [result for result in row.results if result.title.split(",")[0] != event.call.name] + [found]
            if event.evaluation is not None:
                row.verdict = event.evaluation.verdict.value
                row.measurement = event.evaluation.measurement or row.measurement
            elif build := event.data.get("build"):
                row.verdict = str(build.get("verdict") or "")
            elif event.call.name == "compile" and event.ok:
                row.verdict = row.verdict or "compiled"
        if self._by_model:
            before = self.result
            text = f"{before.text}\n\n-> {found.title}\n{found.text}"
            arrow = "," if " -> " in before.title else " ->"
            title = f"{before.title}{arrow} {found.title.replace(',', '')}"
            found = Result(title, text, found.candidate, found.lines or before.lines)
        self.result = found

    def _result(self, event: ToolReturned) -> Result:
        evaluation, name = event.evaluation, event.call.name
        lines: set[int] = set()
        if name not in ("read", "profile", "submit") and not (evaluation is not None and evaluation.passed):
            lines = {int(number) for pattern in _LINES for number in pattern.findall(event.text)}
        of = event.candidate or self.current
        if name == "inspect_failure" and (match := re.match(r"attempt (\d{1,6}):", event.text)):
            row = self.row(int(match[1]))
            of = row.candidate if row is not None else of
        title = f"{name}, {duration(event.seconds) if event.seconds >= 10 else f'{event.seconds:.1f} s'}"
        return Result(title, event.text, of, frozenset(lines))

    def _written(self, candidate: str, by: str) -> None:
        if self.rows and self.rows[-1].candidate == candidate:
            return
        known = next((row for row in reversed(self.rows) if row.candidate == candidate), None)
        self.rows.append(Row(len(self.rows) + 1, candidate, by))
        if known is not None:
            self.rows[-1].verdict, self.rows[-1].measurement = known.verdict, known.measurement
        self.current = candidate

    def _finished(self, event: RunFinished) -> None:
        if event.official is not None:
            text = evaluation_block(f"official evaluation of {event.official.candidate}", event.official)
            self.result = Result("official evaluation", text, event.official.candidate)
