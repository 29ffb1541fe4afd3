"""The plots of a report."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from runs.html import drawing
from runs.metrics import Axis, fast_curve, geomean_speedup, shares, solved_curve, spent
from runs.report.study import Group, Study
from runs.report.tables import MODES
from runs.rows import CORRECT, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MODE_COLOURS: dict[str, str] = dict(zip((*MODES, "correct"), drawing.MODES, strict=True))
_LINES = ("-", "--", ":", "-.")
_MOST_PAIRS = 6
"""Pairs of configurations that are drawn; the table has all."""
_PS = np.round(np.arange(0.5, 4.001, 0.05), 2)


@dataclass(frozen=True)
class Plot:
    key: str
    title: str
    note: str
    svg: str


def plots(study: Study) -> list[Plot]:
    """Raises UsageError without matplotlib."""
    drawing.require_matplotlib()
    made = [_fast_curves(study), _modes(study), _solved(study), _roofline(study)]
    if len(study.groups) > 1:
        made.append(_head_to_head(study))
    return made


def _fast_curves(study: Study) -> Plot:
    with drawing.figure(len(study.ks)) as (figure, panels):
        for axes, k in zip(panels, study.ks, strict=True):
            for i, group in enumerate(study.groups):
                curve = fast_curve(group.rows, study.problems, list(_PS), study.fast, k)
                axes.plot(curve.x, curve.y, label=group.label, **_line(i))
                assert curve.low is not None and curve.high is not None
                axes.fill_between(curve.x, curve.low, curve.high, color=_colour(i), alpha=0.12, linewidth=0)
            axes.set(xlabel="p", ylabel=f"fast_p@{k}", xlim=(0.5, 4), ylim=(0, None))
            axes.axvline(1.0, color=drawing.FAINT, linewidth=0.8)
        _legend(figure, panels)
        rule = "point estimate" if study.fast.raw else "lower bound of the interval"
        note = f"Share of all problems that are correct and faster than p ({study.fast.figure} figure, by the {rule})"
        margin = f", with a margin of {study.fast.margin:.1%}" if study.fast.margin else ""
        return Plot("fast", "fast_p", f"{note}{margin}. Bands: 95% over problems.", drawing.svg(figure))


def _modes(study: Study) -> Plot:
    with drawing.figure(1, height=1.0 + 0.45 * len(study.groups)) as (figure, panels):
        axes = panels[0]
        for row, group in enumerate(study.groups):
            of, left = shares(group.rows, study.problems, _how), 0.0
            for mode in ("correct", *MODES):
                if width := of.get(mode, 0.0):
                    axes.barh(row, width, left=left, color=_MODE_COLOURS[mode], height=0.7)
                    left += width
        axes.set_yticks(range(len(study.groups)), [group.label for group in study.groups])
        axes.invert_yaxis()
        axes.set(xlabel="problems (of one sample each, expected)", xlim=(0, max(1, len(study.problems))))
        axes.grid(axis="y", visible=False)
        for mode in ("correct", *MODES):
            axes.bar(0, 0, color=_MODE_COLOURS[mode], label=mode)
        _legend(figure, panels, columns=5)
        note = "How runs end, in ParallelKernelBench's words. `refused`: a cheat or a forbidden feature, ours only."
        return Plot("modes", "Failure modes", note, drawing.svg(figure))


def _how(row: Row) -> str:
    return row.mode or "correct"


def _solved(study: Study) -> Plot:
    with drawing.figure(2) as (figure, panels):
        for axes, (axis, label) in zip(panels, [("step", "steps"), _cost(study)], strict=True):
            end = max((spent(row, axis) for row in study.rows), default=0.0)
            for i, group in enumerate(study.groups):
                for success, style in ((CORRECT, "-"), (study.fast, "--")):
                    curve = solved_curve(group.samples, study.problems, axis, success)
                    x, y = np.append(curve.x, max(end, curve.x[-1])), np.append(curve.y, curve.y[-1])
                    name = f"{group.label}: {'correct' if success is CORRECT else study.fast_name}"
                    axes.step(x, y, where="post", color=_colour(i), linestyle=style, linewidth=1.4, label=name)
            axes.set(xlabel=f"{label} used by a run", ylabel="share of problems", ylim=(0, None), xlim=(0, end or 1))
        _legend(figure, panels)
        note = "Share of problems that one run has solved by then; a run that its official evaluation fails never has."
        return Plot("solved", "Solved at step and at cost", note, drawing.svg(figure))


def _cost(study: Study) -> tuple[Axis, str]:
    """Dollars; of models that cost none, what the evaluations did."""
    return ("usd", "USD") if any(row.spend.usd for row in study.rows) else ("device_s", "device-seconds")


def _roofline(study: Study) -> Plot:
    titles: dict[str, str] = {}
    with drawing.figure(1, height=4.2) as (figure, panels):
        axes, known = panels[0], [row for row in study.rows if row.correct and row.sol_us and row.candidate_us]
        for i, group in enumerate(study.groups):
            of = [row for row in known if study.label_of(row) == group.label and row.outcome == "sample"]
            x, y = [row.sol_us or 0.0 for row in of], [row.candidate_us or 0.0 for row in of]
            drawn = axes.scatter(x, y, s=18, color=_colour(i), label=group.label, alpha=0.8)
            drawn.set_urls([f"#{study.anchor(row)}" for row in of])
            for row in of:
                what = f"{row.config.problem} {row.name}, {group.label}"
                titles[study.anchor(row)] = f"{what}: {row.candidate_us:.1f} us, floor {row.sol_us:.2f} us"
        floors = _span([row.sol_us or 0.0 for row in known])
        times = _span([row.candidate_us or 0.0 for row in known])
        for share in (1.0, 0.5, 0.1, 0.01):
            axes.plot(floors, [floor / share for floor in floors], color=drawing.FAINT, linewidth=0.8)
            if times[0] < floors[1] / share < times[1]:
                axes.annotate(
                    f"{share:.0%}", (floors[1], floors[1] / share), color=drawing.FAINT, fontsize=8, va="center"
                )
        axes.set(xlabel="floor of the roofline, us", ylabel="candidate, us")
        _log(axes, *floors, *times)
        _legend(figure, panels)
        note = "Correct candidates, best latency known; the lines are shares of the roofline. A point leads to its run."
        return Plot("roofline", "Candidates against the roofline", note, drawing.svg(figure, titles))


def _span(values: list[float]) -> tuple[float, float]:
    return (min(values) * 0.7, max(values) * 1.4) if values else (1.0, 100.0)


def _head_to_head(study: Study) -> Plot:
    pairs = list(combinations(study.groups, 2))[:_MOST_PAIRS]
    with drawing.figure(min(3, len(pairs)), rows=-(-len(pairs) // 3), height=3.4) as (figure, panels):
        for axes, (first, second) in zip(panels, pairs, strict=False):
            _pair(study, axes, first, second)
        for axes in panels[len(pairs) :]:
            axes.set_visible(False)
        note = (
            "Each problem's geometric mean speed-up with either; those that only one solved stand at the other's edge."
        )
        return Plot("pairs", "Head to head", note, drawing.svg(figure))


def _pair(study: Study, axes: Axes, first: Group, second: Group) -> None:
    points = []
    for key in study.problems:
        sides = [[row for row in group.samples if row.problem == key] for group in (first, second)]
        if all(sides):
            points.append(tuple(geomean_speedup(side, study.fast.figure).value for side in sides))
    known = [value for point in points for value in point if value is not None]
    low, high = (min(*known, 1.0) * 0.7, max(*known, 1.0) * 1.3) if known else (0.5, 2.0)
    both = [(x, y) for x, y in points if x is not None and y is not None]
    one = [(x or low, y or low) for x, y in points if (x is None) != (y is None)]
    for of, marker in ((both, "o"), (one, "x")):
        if of:
            axes.scatter([x for x, _ in of], [y for _, y in of], s=20, marker=marker, color=_colour(0), alpha=0.8)
    axes.plot([low, high], [low, high], color=drawing.FAINT, linewidth=0.8)
    axes.axhline(1, color=drawing.GRID, linewidth=0.8)
    axes.axvline(1, color=drawing.GRID, linewidth=0.8)
    axes.set(xlabel=first.label, ylabel=second.label)
    _log(axes, low * 0.95, high, low * 0.95, high)


def _colour(i: int) -> str:
    return drawing.SERIES[i % len(drawing.SERIES)]


def _line(i: int) -> dict[str, Any]:
    return {"color": _colour(i), "linestyle": _LINES[i // len(drawing.SERIES) % len(_LINES)], "linewidth": 1.6}


def _log(axes: Axes, left: float, right: float, bottom: float, top: float) -> None:
    """Logarithmic axes with plain numbers; on short ones also between powers of ten."""
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, top))
    for axis, span in ((axes.xaxis, right / left), (axes.yaxis, top / bottom)):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter(_minor if span < 30 else lambda value, _: "")


def _minor(value: float, _: object) -> str:
    return f"{value:g}" if f"{value:e}"[0] in "25" else ""


def _legend(figure: Figure, panels: list[Axes], columns: int = 2) -> None:
    handles, labels = panels[0].get_legend_handles_labels()
    if labels:
        figure.legend(handles, labels, loc="outside upper left", ncols=columns, fontsize=8)
