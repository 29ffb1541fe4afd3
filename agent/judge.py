"""A second look at the best candidate: a request of its own, without tools, whose answer is one change to make next."""

from __future__ import annotations

from agent.advice import advice
from agent.conversation import Conversation
from agent.state import attempts_text, figures_text, source_text, told, tried_text
from runs.fold import Folding
from runs.messages import Message
from runs.record import Record


def question(state: Folding, talk: Conversation, record: Record) -> tuple[Message, ...]:
    """The task as it was set, the lane's best candidate, its figures and last profile, what was tried and came of it.
    Nothing of other lanes, even where they had the same text."""
    lane, best = state.lane, state.lane.best
    assert best is not None  # a plateau is that of a best
    task = [message.text for message in talk.beginning if message.role == "user"]
    profile = talk.profiles.get(best.candidate)
    if profile is not None and profile.step <= lane.before.steps:
        profile = None
    facts = [
        source_text(f"The best candidate, attempt {best.number}", best.candidate, record),
        figures_text(best.candidate, lane.attempts),
        told("Its last profile", profile),
        attempts_text(lane.attempts, best),
        tried_text(best.candidate, [lane], record),
        advice("judge_asked"),
    ]
    return (
        Message(role="system", text=advice("judge", platform=state.config.platform)),
        Message(role="user", text="\n\n".join(part for part in [*task, *facts] if part)),
    )
