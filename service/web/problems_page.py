"""`/problems` and `/problems/{n}`: the catalogue, a problem as a model sees it, its cases and their floors."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from asyncio import to_thread
from typing import Any

from nicegui import ui

from problems.catalogue import Entry, entries, find, statement
from problems.spec import ProblemError
from service.web.profile import plain_table
from service.web.site import Site, frame, heading, pre, sentence
from service.web.table import Column, Paged, Row

_SHOW_S = 120.0
COLUMNS = (
    Column("number", "Problem"),
    Column("title", "What it does", wide=True),
    Column("family", "Family"),
    Column("source", "From", wide=True),
    Column("tags", "Tags", wide=True),
    Column("cases", "Cases"),
)


def page(site: Site) -> None:
    listed_all = entries()

    async def fetch(offset: int, limit: int) -> tuple[list[Row], int]:
        words = (text.value or "").lower().split()
        rows = [
            row
            for row in map(row_of, listed_all)
            if (not family.value or row["family"] == family.value)
            and all(word in " ".join(row.values()).lower() for word in words)
        ]
        return rows[offset : offset + limit], len(rows)

    async def changed(_: Any = None) -> None:
        await listed.first()

    with frame(site, "Problems", "/problems"):
        heading("Problems", 1)
        with ui.row().classes("filters"):
            text = ui.input("Filter by any word", on_change=changed)
            text.props('type="search" clearable debounce="250"').classes("grow")
            families = sorted({entry.family for entry in listed_all})
            family = ui.select({"": "any family"} | {name: name for name in families}, value="", label="Family")
            family.on_value_change(changed)
        listed = Paged("Problems", COLUMNS, fetch, size=100)
        ui.timer(0, listed.refresh, once=True)


def row_of(entry: Entry) -> Row:
    return {
        "key": str(entry.number),
        "href": f"/problems/{entry.number}",
        "number": f"{entry.number} {entry.name}",
        "title": entry.title,
        "family": entry.family,
        "source": entry.source,
        "tags": ", ".join(entry.tags),
        "cases": ", ".join(entry.cases),
    }


async def one_page(site: Site, number: str) -> None:
    with frame(site, f"Problem {number}"):
        try:
            entry = find(number)
        except ProblemError as error:
            ui.label(str(error))
            return
        heading(f"{entry.number} {entry.name}: {entry.title}", 1)
        with ui.row().classes("facts"):
            sentence("Family", entry.family)
            sentence("From", entry.source)
            sentence("Tags", ", ".join(entry.tags) or "none")
            sentence("Tolerance", entry.tolerance)
        if entry.repair:
            ui.label(f"Case {entry.default} is not as published: {entry.repair}")
        heading("Cases and their floors")
        waiting = ui.label("Counting the work ...").props('role="status"')
        cases = ui.element("div").classes("w-full")
        heading("Statement")
        pre(statement(entry)).classes("whole")

    async def count() -> None:
        facts = await to_thread(_facts, entry.number, entry.path.stat().st_mtime_ns)
        waiting.text = facts["error"] if "error" in facts else _line(facts)
        with cases:
            plain_table(
                ("case", "GFLOP", "HBM MB", "link out MB", "link in MB", "floor us", "bound by", "here us", "sizes"),
                _case_rows(entry, facts),
            )

    with cases:
        ui.timer(0, count, once=True)


@functools.lru_cache(maxsize=256)
def _facts(number: int, changed_ns: int) -> dict[str, Any]:
    """What `ringsmith problems show` says. In a process of its own: counting the work imports torch, and a server must
    never hold a device's context."""
    command = [sys.executable, "-m", "service.cli", "problems", "show", str(number), "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SHOW_S, check=False)
        if done.returncode == 0:
            return dict(json.loads(done.stdout))
        return {"error": done.stderr.strip().partition("\n")[0] or "the work could not be counted"}
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return {"error": f"the work could not be counted: {error}"}


def _line(facts: dict[str, Any]) -> str:
    return f"Work of the busiest rank, {facts['world_size']} ranks, {facts['dtype']}; * is the default case."


def _case_rows(entry: Entry, facts: dict[str, Any]) -> list[list[str]]:
    rows = []
    for name, case in entry.cases.items():
        work, floors = facts.get("work", {}).get(name, ""), facts.get("floors", {}).get(name, {})
        sizes = ", ".join(f"{key}={value}" for key, value in case.sizes.items())
        shown = f"{name}{'*' if name == entry.default else ''}"
        if isinstance(work, str):
            rows.append([shown, *["-"] * 7, f"{sizes}{f' ({work})' if work else ''}"])
            continue
        megabytes = [f"{work[part] / 1e6:.3g}" for part in ("hbm_bytes", "link_out_bytes", "link_in_bytes")]
        times = [_us(floors.get("sol_us")), floors.get("bound_by") or "-", _us(floors.get("achievable_us"))]
        rows.append([shown, f"{work['flops'] / 1e9:.3g}", *megabytes, *times, sizes])
    return rows


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
