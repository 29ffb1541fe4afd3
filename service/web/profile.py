"""A profile: what a call's time goes to on each rank, kernels, what to do next, and the trace to download."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from nicegui import ui

from harness.profile_types import Profile
from service.web.chart import by_rank
from service.web.site import heading

_KERNELS = 12


def show_profile(profile: Profile, record: Path) -> None:
    heading("Profile")
    if profile.mechanisms:
        ui.label(f"Moved by {', '.join(profile.mechanisms)}.")
    chart = ui.echart(by_rank(profile)).classes("chart")
    chart.props('role="img" aria-label="Time of a call by rank; the table has the same"')
    names: tuple[str, ...] = ("rank", "back to back, us")
    rows = [[str(rank.rank), f"{rank.iteration_us:.1f}"] for rank in profile.ranks]
    if any(rank.span_us for rank in profile.ranks):
        names += ("on device", "communicating", "computing", "both", "idle", "waiting")
        for row, rank in zip(rows, profile.ranks, strict=True):
            times = (rank.span_us, rank.communication_us, rank.computation_us, rank.both_us, rank.idle_us)
            row += [f"{us:.1f}" for us in (*times, rank.waiting_us)]
    plain_table(names, rows)
    if profile.kernels:
        kernels = [
            [one.name[:120], f"{one.calls:g}", f"{one.device_us:.1f}", "yes" if one.communicates else ""]
            for one in profile.kernels[:_KERNELS]
        ]
        plain_table(("kernel", "calls", "us", "communicates"), kernels)
    elif profile.ranks:
        calls = [
            [one.name[:120], f"{one.calls:g}", f"{one.device_us + one.host_us:.1f}"] for one in profile.ranks[0].top
        ]
        plain_table((f"call on rank {profile.ranks[0].rank}", "calls", "us"), calls)
    for number, hint in enumerate(profile.hints, start=1):
        ui.label(f"{number}. {hint.text}")
        ui.label(hint.evidence).classes("faint")
    trace = Path(profile.trace).name
    if (record / "traces" / trace).is_file():
        target = f"/files/runs/{quote(record.name, safe='')}/traces/{quote(trace, safe='')}"
        ui.link("Trace of all ranks (opens in Perfetto)", target).props("download")
    else:
        ui.label("The trace is not in this record.").classes("faint")


def plain_table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A short table of texts."""
    with ui.element("table").classes("plain"):
        with ui.element("thead"), ui.element("tr"):
            for name in names:
                with ui.element("th").props('scope="col"'):
                    ui.label(name)
        with ui.element("tbody"):
            for row in rows:
                with ui.element("tr"):
                    for cell in row:
                        with ui.element("td"):
                            ui.label(str(cell))
