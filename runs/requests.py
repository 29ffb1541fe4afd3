"""Requests to a model as a record keeps them: each as what it does not share with the one before it.

A request repeats the whole conversation, so a record that kept each in full would grow with the square of the steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from harness.errors import UsageError
from runs.events import Event, ModelReplied, Sent


def difference(before: dict[str, Any], now: dict[str, Any]) -> Sent:
    """What `restored` needs to make `now` of `before`. Of lists the common beginning is left out, entry by entry."""
    same: dict[str, int | None] = {}
    new: dict[str, Any] = {}
    for name, value in now.items():
        known = before.get(name)
        if name in before and value == known:
            same[name] = None
        elif isinstance(value, list) and isinstance(known, list):
            same[name] = count = _common(known, value)
            new[name] = value[count:]
        else:
            new[name] = value
    return Sent(same=same, new=new)


def restored(before: dict[str, Any], sent: Sent) -> dict[str, Any]:
    """The request, given the one before it."""
    request = {}
    for name in dict.fromkeys([*sent.same, *sent.new]):
        count = sent.same.get(name, 0)
        if count is None:
            request[name] = before[name]
        else:
            request[name] = [*before[name][:count], *sent.new[name]] if count else sent.new[name]
    return request


def request_of(events: Iterable[Event], step: int) -> dict[str, Any]:
    """The body of the request that was answered by reply number `step`. Raises UsageError if the record has none."""
    request: dict[str, Any] = {}
    for event in events:
        if isinstance(event, ModelReplied):
            if event.request is not None:
                request = restored(request, event.request)
            if event.step == step:
                if event.request is None:
                    raise UsageError(f"the record has no request of step {step}: a replay sends none, nor did old runs")
                return request
    raise UsageError(f"the run has no step {step}")


def last_request(events: Iterable[Event]) -> dict[str, Any]:
    """What the next request is to be compared with; empty if there was none."""
    request: dict[str, Any] = {}
    for event in events:
        if isinstance(event, ModelReplied) and event.request is not None:
            request = restored(request, event.request)
    return request


def _common(before: list[Any], now: list[Any]) -> int:
    """How many entries both begin with."""
    return next((i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), min(len(before), len(now)))
