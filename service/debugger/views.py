"""How texts, attempts and figures look in a terminal."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from harness.types import Verdict
from harness.wording import one_line, plain, ratio_text
from runs.messages import Message
from service.debugger.code import changes, highlighted
from service.debugger.journal import Result, Row
from service.debugger.session import Debugging

_NO_LIMIT = "\n\nBudget left: no limit."
"""What a model is told after each call, and a person need not be."""
_PASSED = re.compile(r"\bPASSED\b")
_FAILED = re.compile(rf"\b({'|'.join(v.upper() for v in Verdict if v is not Verdict.passed)})\b")
_CALL = re.compile(r"^-> .*$", re.M)


def result(shown: Result, writing: str = "") -> Text:
    """`writing`: a reply that comes in, shown instead."""
    if writing:
        return Text(plain(writing), style="italic")
    text = Text(plain(shown.text.replace(_NO_LIMIT, "")))
    for pattern, style in ((_CALL, "bold"), (_PASSED, "bold green"), (_FAILED, "bold red")):
        text.highlight_regex(pattern, style)
    return text


def cells(row: Row, best: str | None, current: str | None, marked: int | None) -> tuple[Text, ...]:
    """Of the table of attempts."""
    signs = (row.candidate == best, "*"), (row.candidate == current, ">"), (row.number == marked, "•")
    sign = "".join(mark if shown else " " for shown, mark in signs)
    measured = row.measurement
    figures = [ratio_text(measured.eager.speedup)] if measured is not None else []
    if measured is not None and measured.device is not None:
        figures.append(f"device {ratio_text(measured.device.speedup)}")
    style = "green" if row.verdict == "passed" else "" if row.verdict in ("", "compiled") else "red"
    return (
        Text(f"{sign}{row.number:>2}"),
        Text(row.verdict or "-", style=style),
        Text(", ".join(figures)),
        Text(row.by),
        Text(row.candidate[:8], style="dim"),
    )


def task(messages: Sequence[Message]) -> Text:
    """As a model is told it."""
    return Text("\n\n".join(plain(message.text) for message in messages))


COLUMNS = ("    #", "VERDICT", "SPEED-UP", "BY", "HASH")


def where(debugging: Debugging) -> str:
    """What is worked on, and where."""
    if debugging.journal.state is None:
        return ""
    config = debugging.journal.state.config
    model = debugging.model.name if debugging.model is not None else ""
    ranks = f"{config.platform} x{config.world_size} {config.dtype} {config.backend}"
    return f"problem {config.problem}, case {config.case}, {ranks}{f', {one_line(model, 40)}' if model else ''}"


def doing(debugging: Debugging) -> str:
    """What is under way, or how the run stands; what it has cost."""
    state = debugging.journal.state
    now = "paused by a person" if state is not None and state.paused else "ready"
    if debugging.doing is not None:
        stopping = "stopping " if debugging.doing.stopping else ""
        paused = " (paused by a person)" if state is not None and state.paused else ""
        now = f"{stopping}{debugging.doing.label} {debugging.doing.seconds:.0f} s{paused}"
    elif debugging.agent.ended is not None:
        now = f"ended: {one_line(debugging.agent.ended.reason or '', 60)}"
    if state is None:
        return now
    spend = state.spend
    usd = f", {spend.usd:.2f} USD" if spend.usd else ""
    return f"{now} | {spend.steps} steps{usd}, {spend.device_s:.0f} device-s"


def difference(before: str, after: str, titles: tuple[str, str], dark: bool) -> RenderableType:
    """What changed from one text to another, under both titles."""
    head = Text(f"- {titles[0]}\n+ {titles[1]}\n", style="bold")
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), "-", "+", lineterm="", n=3))[2:]
    if not lines:
        return Group(head, Text("The texts are the same."))
    return Group(head, changes("\n".join(lines), dark))


def attempt(row: Row, source: str, dark: bool) -> RenderableType:
    """All that is known of an attempt: what each tool said last, then its text."""
    said = [Text(f"{found.title}\n{plain(found.text.replace(_NO_LIMIT, ''))}\n") for found in row.results]
    marked = next((found.lines for found in reversed(row.results) if found.lines), frozenset())
    return Group(*said, highlighted(source, dark, marked))
