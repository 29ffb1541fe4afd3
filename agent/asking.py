"""Asking the model: in a conversation that fits its context, bounded by what is left of the budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from agent.conversation import CUT
from agent.judge import question
from agent.models.base import ContextOverflowError, Model, ReplyCutError
from agent.models.bounds import tokens_of
from agent.running import Running
from agent.shortening import KEPT_STEPS, LEAST_GAIN, characters
from agent.state import HEAD, written
from agent.strategies.base import Say
from runs.events import ContextReset, ResultsShortened
from runs.messages import Message, Turn, Usage

LEAST_LEFT_OUT = 6
"""Messages that make a summary worth while: it may be long itself."""


class Asking:
    def __init__(self, model: Model, run: Running) -> None:
        self.model = model
        self.run = run

    def ask(self, asked_at: float) -> Turn:
        """The next reply of the conversation, which is made to fit. Raises ModelError, BudgetEndedError."""
        self.fit()
        left_out = self.run.talk.since_reset
        try:
            return self.reply(asked_at)
        except ContextOverflowError:
            if not left_out:
                raise  # there is nothing to leave out
            self.reset("overflow")
            return self.reply(asked_at)

    def judge(self) -> None:
        """Ask for a look at the best candidate, and record the answer; no message of the conversation. Where even that
        is too long for the model there is no advice, which is no reason to end a run."""
        asked_at, asked = self.run.clock(), question(self.run.state, self.run.talk, self.run.record)
        of: dict[str, Any] = {"purpose": "judge", "asked": asked}
        expected = Usage(input_tokens=tokens_of(characters(asked)))
        try:
            turn = self.request(asked, (), expected, asked_at, **of)
        except ContextOverflowError as error:
            if error.cut is not None:  # recorded and paid for
                return
            turn = Turn(stop="overflow", cost_usd=0.0)
        self.run.heard(turn, asked_at, **of)

    def reply(self, asked_at: float) -> Turn:
        return self.request(self.run.talk.messages, self.run.schemas(), self.run.talk.expected, asked_at)

    def request(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]],
        expected: Usage,
        asked_at: float,
        **of: Any,
    ) -> Turn:
        """Ask, bounded by what is left. What ends early is paid for and recorded (`of` as in `Running.heard`), and not
        acted on."""
        bounds = self.run.meter.request(expected, self.model.cost_usd)
        held_s = bounds.use.waited_s  # for other runs' requests
        try:
            turn = self.model.reply(messages, tools, bounds)
        except ContextOverflowError as error:
            if error.cut is not None:
                self.run.heard(error.cut, asked_at, **of)
            raise
        except ReplyCutError as error:
            usage, waited_s = error.usage, error.waited_s + held_s
            paid = Turn(usage=usage, cost_usd=self.model.cost_usd(usage), waited_s=waited_s, stop=CUT)
            self.run.heard(paid, asked_at, **of)
            raise
        return turn.model_copy(update={"waited_s": turn.waited_s + held_s}) if held_s else turn

    def fit(self) -> None:
        """Make a conversation that has become long shorter: old results first, at the limit all of it."""
        talk, limit = self.run.talk, self.run.config.context_tokens
        through = talk.step - KEPT_STEPS
        if talk.turn is not None and talk.turn.usage.input_tokens > limit and talk.since_reset >= LEAST_LEFT_OUT:
            self.reset("long")
        elif talk.grown > limit / 2 and talk.gain(through) >= LEAST_GAIN:
            self.run.append(ResultsShortened(at=self.run.clock(), through=through))

    def reset(self, reason: Literal["long", "overflow", "strategy"], said: Say | None = None) -> None:
        """Let what the strategy says and a summary of the record take the conversation's place."""
        head, topic = (said.text, said.topic) if said else (HEAD, "")
        text = f"{head}\n\n{written(self.run.state, self.run.talk, self.run.record)}\n\n{self.run.left()}"
        self.run.append(ContextReset(at=self.run.clock(), reason=reason, text=text, topic=topic))
