"""One step of a model in a run that somebody else leads (`agent.external`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agent.advice import advice
from agent.asking import Asking
from agent.models.base import Model, ModelError
from agent.models.replay import REPLAY_END
from agent.running import SUBMIT, Running, Stopped
from runs.events import UserMessage

ASKED = "asked"
"""Topic of what the model is told."""


def make_step(model: Model, run: Running) -> None:
    """Ask, with the run's conversation so far, and make the calls of the reply. Raises Stopped, BudgetEndedError, and
    ModelError, which nothing is lost by: the run can go on."""
    run.heed()
    if dimension := run.meter.over():
        raise Stopped(f"budget: {dimension}")
    run.append(UserMessage(at=run.clock(), text=advice("asked", left=run.left()), topic=ASKED))
    with without_submit(run):
        asked_at = run.clock()
        turn = Asking(model, run).ask(asked_at)
        if turn.stop == REPLAY_END:
            raise ModelError(f"{model.name} has no further reply")
        step = run.heard(turn, asked_at)
        for call in turn.tool_calls:
            run.act(step, call)


@contextmanager
def without_submit(run: Running) -> Iterator[None]:
    """While calls are a model's: the end is the leader's."""
    run.allowed = frozenset(schema["name"] for schema in run.toolbox.schemas()) - {SUBMIT}
    try:
        yield
    finally:
        run.allowed = None
