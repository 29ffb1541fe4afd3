"""Why an output is wrong, found out with both sides still there: what its values are, whether a second call gives them
again, and which rank's inputs they hang on. Imports no torch.

Nothing here changes a verdict, and nothing that fails here does: a diagnosis is what could be found out.
"""

from __future__ import annotations

import time
from typing import Any

from harness import findings
from harness.diagnosis import name_ranks
from harness.errors import SandboxError
from harness.pair import FailedError, Pair, Wrong
from harness.types import Finding

_CALL_S = 3.0
"""Deadline of a call that is only a probe."""
_BUDGET_S = 4.0
"""No further probe is begun after this."""
_DEADLINE_S = 10.0
"""Of the reference ranks, for one request: they evaluate what was never meant to be evaluated."""
_UNSTEADY = "differs from call to call"
_SYMPTOMS = ("rows scaled",)
"""Causes that say what is wrong and not why."""
_TO = -1
"""The candidate's slot for inputs of which one rank's are changed."""


def diagnose(pair: Pair, wrong: Wrong) -> tuple[Finding, ...]:
    """Why an output of the last check was wrong, most telling finding first."""
    certain: tuple[Finding, ...] = ()
    left: tuple[Finding, ...] = ()
    try:
        quick = 2 * pair.candidate.world_size * pair.check_s < _BUDGET_S
        message = {
            "number": wrong.number, "item": wrong.item, "others": wrong.others, "check": pair.request.check,
            "parts": quick,
        }  # fmt: skip
        replies = pair.ask_reference("diagnose", message, "finding out what wrong values are", _deadline(pair))
        found = findings.merge([reply["facts"] for reply in replies])
        certain = tuple(finding for finding in found if finding.certain)
        left = tuple(finding for finding in found if not finding.certain)
        weak = left or any(finding.cause in _SYMPTOMS for finding in certain)
        if weak and quick and (supposed := _suppose(pair, wrong, replies[0]["suppositions"])):
            certain, left = (*supposed, *certain), ()
        if "slot" in wrong.item and not wrong.item.get("former"):  # calls in a row are not repeated one by one
            probed = _probe(pair, wrong.item["slot"], whole=quick and not certain)
            # What depends on timing comes before what the values happened to be.
            first = [finding for finding in probed if finding.cause == _UNSTEADY]
            certain = (*first, *certain, *(finding for finding in probed if finding not in first))
    except SandboxError as error:  # the reference's ranks are replaced; the verdict stands
        text = f"the diagnosis broke off: {str(error).splitlines()[0]}"
        left = (*left, Finding(cause="not diagnosed", text=text, certain=False))
    return (*certain, *(finding for finding in left if not certain or finding.cause != "unknown"))


def _deadline(pair: Pair) -> float:
    return _DEADLINE_S + 8 * pair.check_s


def _suppose(pair: Pair, wrong: Wrong, possible: list[dict[str, Any]]) -> tuple[Finding, ...]:
    """The first supposition under which what all wrong ranks returned would be right."""
    began = time.monotonic()
    common = {"number": wrong.number, "item": wrong.item, "check": pair.request.check}
    for it in possible:
        if time.monotonic() > began + _BUDGET_S:
            break
        replies = pair.ask_reference(
            "suppose", common | {"supposition": it}, f"supposing {it['text']}", _deadline(pair)
        )
        told = [reply for reply in replies if reply["holds"] is not None]
        if told and all(reply["holds"] for reply in told):
            evidence = "the reference was evaluated so, and gives what the candidate returned"
            firm = any(reply["firm"] for reply in told)
            return (Finding(cause=it["cause"], text=it["text"], evidence=evidence, certain=firm),)
    return ()


def _probe(pair: Pair, slot: int, whole: bool) -> tuple[Finding, ...]:
    """Calls on the same inputs again, and (`whole`) on inputs of which one rank's numbers are changed."""
    facts: list[list[dict[str, Any]]] = [[] for _ in range(pair.candidate.world_size)]
    try:
        found = _repeated(_ask(pair, "again", slot, {"slot": slot}))
        if found is not None:
            return (found,)
        if whole:
            _sway(pair, slot, facts)
    except FailedError:  # it has failed already
        pass
    return findings.merge(facts)


def _sway(pair: Pair, slot: int, facts: list[list[dict[str, Any]]]) -> None:
    """Adds to each rank's facts what its output hangs on. Raises FailedError."""
    began = time.monotonic()
    for rank in range(pair.candidate.world_size):
        if time.monotonic() > began + _BUDGET_S:
            break
        drawn = pair.ask_reference("vary", {"slot": slot, "rank": rank}, "changing one rank's inputs")
        messages = [{"slot": _TO, "in_place": False, "tree": reply["tree"]} for reply in drawn]
        pair.ask("inputs", messages, _CALL_S)
        replies = _ask(pair, "influence", _TO, {"slot": slot, "rank": rank})
        for into, reply in zip(facts, replies, strict=True):
            into += reply["facts"]


def _ask(pair: Pair, op: str, slot: int, message: dict[str, Any]) -> list[dict[str, Any]]:
    """The candidate's call on a slot, and what the reference ranks say of its output."""
    replies = pair.ask("call", {"slot": slot}, pair.call_deadline(min(_CALL_S, pair.limits.call_s)))
    common = message | {"check": pair.request.check}
    return pair.ask_reference(op, [{**common, "tree": reply.get("tree")} for reply in replies], "probing")


def _repeated(again: list[dict[str, Any]]) -> Finding | None:
    """What a second call on the same inputs says."""
    evidence = "the candidate was called again on the very same inputs"
    if all(reply["right"] for reply in again):
        return Finding(
            cause=_UNSTEADY,
            text="the second call on the same inputs was right on all ranks: the first met something uninitialised, or "
            "read before it was written",
            evidence=evidence,
        )
    differs = [
        rank
        for rank, reply in enumerate(again)
        if reply["same"] is False or (reply["same"] is None and not reply["right"])
    ]
    if differs:
        return Finding(
            cause=_UNSTEADY,
            text=f"on {name_ranks(differs)} a second call on the same "
            "inputs gave another output: it depends on timing or on what an earlier call left",
            evidence=evidence,
        )
    return None
