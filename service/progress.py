"""What is going on, on stderr: a line per thing that happened and, on a terminal, a live line for what is happening."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from harness.types import Stage
from harness.wording import one_line, plain
from runs.events import (
    AgentCalled,
    Budget,
    ContextReset,
    Event,
    LaneStarted,
    ModelReplied,
    PersonActed,
    ResultsShortened,
    RunFinished,
    RunResumed,
    RunStarted,
    Spend,
    Target,
    ToolReturned,
    UserMessage,
)
from runs.fold import Folding
from runs.messages import ToolCall
from runs.wording import charged, duration, speedups

_LINES, _KEPT = 6, 2000
"""Lines that are shown of a reply while it is written, and the characters that are kept for them."""
_SHOWN = 110
"""Characters of what a model or a tool says that are shown; the record has all of it."""


def stderr_console() -> Console:
    """Wraps nothing and interprets nothing: what it prints may come from a model or a candidate."""
    return Console(file=sys.stderr, markup=False, highlight=False, emoji=False, soft_wrap=True)


@dataclass(frozen=True)
class _Region:
    """A line with a spinner, and below it the end of what a model writes."""

    spinner: Spinner
    written: tuple[tuple[str, bool], ...] = ()
    """Pieces, and whether each is reasoning."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield self.spinner
        text = Text.assemble(*((piece, "dim" if thought else "") for piece, thought in self.written))
        width = max(1, options.max_width - 2)
        for line in text.wrap(console, width, overflow="fold")[-_LINES:] if self.written else ():
            yield Text("  ").append_text(line)


class LiveLine:
    """A spinner with a text, on terminals only."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._region: _Region | None = None

    def show(self, text: str) -> None:
        """Show or replace the text."""
        if not self._console.is_terminal:
            return
        self._region = _Region(Spinner("dots", Text(one_line(text, self._console.width - 4))))
        if self._live is None:
            # Rich would redirect stdout into this console, and results with it.
            self._live = Live(
                self._region, console=self._console, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
        else:
            self._live.update(self._region, refresh=True)

    def write(self, text: str, thought: bool) -> None:
        """Add to what is shown below the line, until the next `show`. Drawn a few times a second, not at each piece."""
        if self._live is None or self._region is None:
            return
        written, length = [*self._region.written, (plain(text), thought)], 0
        for at in range(len(written) - 1, -1, -1):
            length += len(written[at][0])
            if length > _KEPT:
                written = [(written[at][0][-_KEPT:], written[at][1]), *written[at + 1 :]]
                break
        if len(written) > 1 and written[-1][1] == written[-2][1]:
            written[-2:] = [(written[-2][0] + written[-1][0], thought)]
        self._region = _Region(self._region.spinner, tuple(written))
        self._live.update(self._region)

    def clear(self) -> None:
        """Take the line away."""
        if self._live is not None:
            self._live.stop()
            self._live = None


@contextmanager
def stages(label: str, console: Console) -> Iterator[Callable[[Stage], None]]:
    """Show the stages of one evaluation: `Sandbox.evaluate(request, on_stage)` takes what this yields."""
    line = LiveLine(console)

    def on_stage(stage: Stage) -> None:
        if console.is_terminal:
            line.show(f"{label}: {stage}")
        else:
            console.print(f"{one_line(label)}: {stage}")

    try:
        line.show(f"{label}: starting")
        yield on_stage
    finally:
        line.clear()


class RunProgress:
    """Shows a run from its events. Call it with each, in order; `close` when no more will come."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._line = LiveLine(console)
        self._run: Folding | None = None
        self._pending: list[ToolCall] = []
        """Calls of the last reply that have not returned."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._run = run = Folding(event)
            self._started(event)
        else:
            assert self._run is not None  # a record begins with RunStarted
            run = self._run
            run.add(event)
            if isinstance(event, RunFinished):
                self._print(f"finished: {one_line(event.reason, 300)}", "bold")
                self.close()
                return
            self._happened(event, run)
        self._line.show(f"{self._doing(event)}; best {_best(run)}; left: {left(run.config.budget, run.spend)}")

    def _happened(
        self,
        event: RunResumed
        | ModelReplied
        | AgentCalled
        | ToolReturned
        | UserMessage
        | ContextReset
        | ResultsShortened
        | LaneStarted
        | PersonActed,
        run: Folding,
    ) -> None:
        if isinstance(event, ModelReplied):
            self._pending = [] if event.purpose else list(event.turn.tool_calls)
            self._replied(event, run.config.budget)
        elif isinstance(event, AgentCalled):
            self._pending = [event.call]
            self._step(event.step, f"(calls {one_line(event.call.name, 40)})", run.config.budget)
        elif isinstance(event, ToolReturned):
            self._pending = [call for call in self._pending if call.id != event.call.id]
            self._returned(event, run)
        elif isinstance(event, UserMessage):
            self._print(f"  loop: {one_line(event.text, _SHOWN)}", "dim")
        elif isinstance(event, ResultsShortened):
            self._print(f"  context: tool results up to step {event.through} were shortened", "dim")
        elif isinstance(event, PersonActed):
            self._print(f"  person: {asked(event)}", "magenta")
        elif isinstance(event, ContextReset):
            self._print(f"  context: the conversation was replaced by a summary ({event.reason})", "dim")
        elif isinstance(event, LaneStarted):
            self._pending = []
            begins = f"goes on from {event.candidate}" if event.candidate else "begins afresh"
            self._print(f"lane {event.lane} {begins}: {one_line(event.text, _SHOWN) or 'the task alone'}", "bold")
        else:
            self._print("resumed", "bold")
            if event.prices:
                self._print(f"  prices have changed: from here on by {charged(event.prices)}", "yellow")

    def said(self, text: str, thought: bool) -> None:
        """A piece of the reply that is being written (`agent.models.base.OnText`): shown below the live line."""
        self._line.write(text, thought)

    def close(self) -> None:
        """Take the live line away."""
        self._line.clear()

    def _doing(self, event: Event) -> str:
        assert self._run is not None
        if self._run.paused:
            return "paused by a person (`ringsmith runs resume` goes on)"
        submitted = isinstance(event, ToolReturned) and event.ok and event.call.name == "submit"
        if submitted or self._run.cancelled:
            return "official evaluation"
        return self._pending[0].name if self._pending else "waiting for the model"

    def _started(self, event: RunStarted) -> None:
        config = event.config
        where = f" at {config.sandbox}" if config.sandbox else ""
        ranks = f"{config.platform} x {config.world_size}{where}, {config.dtype}, {config.backend}"
        what = f"problem {config.problem}, case {config.case}, {ranks}, model {one_line(config.model)}"
        self._print(f"run {event.run_id}: {what}", "bold")
        self._print(f"  target: {_target(config.target)}; budget: {left(config.budget, Spend())}")

    def _replied(self, event: ModelReplied, budget: Budget) -> None:
        calls = ", ".join(one_line(call.name, 40) for call in event.turn.tool_calls)
        said = one_line(event.turn.text, _SHOWN) or (f"(calls {calls})" if calls else "(says nothing)")
        self._step(event.step, f"{event.purpose}: {said}" if event.purpose else said, budget)

    def _step(self, step: int, said: str, budget: Budget) -> None:
        of = f"/{budget.steps}" if budget.steps is not None else ""
        self._print(f"step {step}{of}: {said}")

    def _returned(self, event: ToolReturned, run: Folding) -> None:
        tool = one_line(event.call.name, 40)
        evaluation = event.evaluation
        if not event.ok:
            self._print(f"  {tool}: refused: {one_line(event.text, _SHOWN)}", "yellow")
        elif evaluation is None:
            self._print(f"  {tool}: {one_line(event.text, _SHOWN)}", "dim")
        else:
            figures = speedups(evaluation.measurement) if evaluation.passed else one_line(evaluation.summary, _SHOWN)
            self._print(
                f"  {tool}: {evaluation.verdict}, {figures or 'not timed'}", "green" if evaluation.passed else "red"
            )
            self._print(f"    best {_best(run)}; left: {left(run.config.budget, run.spend)}", "dim")

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style))


def asked(event: PersonActed) -> str:
    """What a person asked for, in one line."""
    if event.action == "candidate":
        return f"candidate {event.candidate}"
    return f"{event.action}: {one_line(event.text, _SHOWN)}" if event.text else event.action


def left(budget: Budget, spend: Spend) -> str:
    """What remains of a budget, limited dimensions only: `16 steps, 0.42 USD, 12 min`."""
    parts = []
    if budget.steps is not None:
        parts.append(f"{budget.steps - spend.steps} steps")
    if budget.tokens is not None:
        parts.append(f"{budget.tokens - spend.tokens} tokens")
    if budget.usd is not None:
        parts.append(f"{budget.usd - spend.usd:.2f} USD")
    if budget.wall_s is not None:
        parts.append(duration(budget.wall_s - spend.wall_s))
    if budget.device_s is not None:
        parts.append(f"{budget.device_s - spend.device_s:.0f} device-seconds")
    return ", ".join(parts) or "no limit"


def _best(run: Folding) -> str:
    best = run.best
    if best is None:
        return "none yet"
    return f"at step {best.step} ({speedups(best.measurement) or 'correct, not timed'})"


def _target(target: Target) -> str:
    return "as fast as it gets" if target.speedup is None else f"speed-up above {target.speedup:g}x"
