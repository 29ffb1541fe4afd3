"""Why an output is wrong, found out with both sides still there: what its values are, whether a second call gives them
again, and which rank's inputs they hang on. Imports no torch.

Nothing here changes a verdict, and nothing that fails here does: a diagnosis is what could be found out.
"""

from __future__ import annotations

import time
from typing import Any

from harness import findings
from harness.errors import SandboxError
from harness.pair import FailedError, Pair, Wrong
from harness.types import Finding

_CALL_S = 3.0
"""Deadline of a call that is only a probe."""
_BUDGET_S = 4.0
"""No further probe is begun after this."""
_TO = -1
"""Slot of the inputs of which one rank's are changed."""


def diagnose(pair: Pair, wrong: Wrong) -> tuple[Finding, ...]:
    """Why an output of the last check was wrong, most telling finding first."""
    try:
        message = {"number": wrong.number, "item": wrong.item, "others": wrong.others, "check": pair.request.check}
        replies = pair.ask_reference("diagnose", message, "finding out what wrong values are")
        found = findings.merge([reply["facts"] for reply in replies])
        certain = tuple(finding for finding in found if finding.certain)
        if "slot" not in wrong.item or wrong.item.get("former"):  # calls in a row are not repeated one by one
            return found
        probed = _probe(pair, wrong.item["slot"], whole=not certain)
        return (*certain, *probed, *(finding for finding in found if not finding.certain))
    except SandboxError as error:  # the reference's ranks are replaced; the verdict stands
        text = f"the diagnosis broke off: {str(error).splitlines()[0]}"
        return (Finding(cause="not diagnosed", text=text, certain=False),)


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
        drawn = pair.ask_reference("vary", {"slot": slot, "to": _TO, "rank": rank}, "changing one rank's inputs")
        messages = [{"slot": _TO, "in_place": False, "tree": reply["tree"]} for reply in drawn]
        pair.ask("inputs", messages, _CALL_S)
        replies = _ask(pair, "influence", _TO, {"slot": slot, "to": _TO, "rank": rank})
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
            cause="differs from call to call",
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
            cause="differs from call to call",
            text=f"on rank{'s' if len(differs) > 1 else ''} {', '.join(map(str, differs))} a second call on the same "
            "inputs gave another output: it depends on timing or on what an earlier call left",
            evidence=evidence,
        )
    return None
