"""Options of ECharts for a run's figures. Names in them are ours: keys, ranks, what ran."""

from __future__ import annotations

from typing import Any

from harness.profile_types import Profile
from harness.wording import ratio_text
from runs.attempts import Leader, headline
from runs.view import View

_INK, _GRID, _RIGHT, _WRONG, _BEST = "#7b858f", "#7b858f40", "#2e9e5b", "#d6493b", "#3f9bd6"
"""Read on dark and on light."""
_AXIS = {"axisLine": {"lineStyle": {"color": _INK}}, "axisLabel": {"color": _INK}, "nameTextStyle": {"color": _INK}}


def over_steps(view: View) -> dict[str, Any]:
    """Speed-ups by step, what failed at the foot, and the best so far. A point has its attempt's key."""
    passed, failed, best = [], [], []
    for one in view.revisions:
        if one.speedup is not None and one.failed is None:
            said = f"attempt {one.key}, step {one.step}: {ratio_text(one.speedup)}"
            passed.append({"name": said, "key": one.key, "value": [one.step, round(one.speedup.value, 3)]})
        elif one.verdict is not None:
            said = f"attempt {one.key}, step {one.step}: {one.verdict if one.failed else 'correct, not timed'}"
            failed.append({"name": said, "key": one.key, "value": [one.step, 0]})
    leader = Leader()
    for attempt in view.state.attempts:
        leader.add(attempt)
        if leader.best and leader.best.measurement:
            best.append([attempt.step, round(headline(leader.best.measurement).value, 3)])
    target = view.state.config.target.speedup
    marks = [{"yAxis": 1.0, "label": {"formatter": "as fast as the reference"}}]
    marks += [{"yAxis": target, "label": {"formatter": f"target {target:g}"}}] if target is not None else []
    line = {
        "silent": True,
        "symbol": "none",
        "lineStyle": {"color": _INK, "type": "dashed"},
        "label": {"position": "insideEndTop", "color": _INK},
        "data": marks,
    }
    scatter = {"type": "scatter", "symbolSize": 9, "emphasis": {"scale": 1.4}}
    return {
        "animation": False,
        "grid": {"left": 50, "right": 20, "top": 30, "bottom": 40},
        "legend": {"textStyle": {"color": _INK}, "top": 0, "left": 100},
        "tooltip": {"trigger": "item", "formatter": "{b}"},
        "xAxis": {"type": "value", "name": "step", "nameLocation": "middle", "nameGap": 24, "minInterval": 1, **_AXIS}
        | {"splitLine": {"lineStyle": {"color": _GRID}}, "min": 0, "max": max(1, view.state.spend.steps)},
        "yAxis": {"type": "value", "name": "speed-up", "min": 0, **_AXIS}
        | {"splitLine": {"lineStyle": {"color": _GRID}}},
        "series": [
            {"name": "best so far", "type": "line", "step": "end", "symbol": "none", "data": best}
            | {"color": _BEST, "silent": True, "markLine": line},
            {"name": "correct", "color": _RIGHT, "data": passed, **scatter},
            {"name": "failed or not timed", "color": _WRONG, "symbol": "diamond", "data": failed, **scatter},
        ],
    }


def by_rank(profile: Profile) -> dict[str, Any]:
    """What a call's time goes to on each rank, in us; without a device, the call as a whole."""
    ranks = profile.ranks
    parts: list[tuple[str, str, list[float]]]
    if any(rank.span_us for rank in ranks):
        parts = [
            ("computing", "#3f9bd6", [rank.computation_us - rank.both_us for rank in ranks]),
            ("both", "#6a5acd", [rank.both_us for rank in ranks]),
            ("communicating", "#e39a5f", [rank.communication_us - rank.both_us for rank in ranks]),
            ("idle", "#9aa3ab", [rank.idle_us for rank in ranks]),
        ]
    else:
        parts = [("one call", "#3f9bd6", [rank.iteration_us for rank in ranks])]
    return {
        "animation": False,
        "grid": {"left": 70, "right": 20, "top": 30, "bottom": 40},
        "legend": {"textStyle": {"color": _INK}, "top": 0, "left": 100},
        "tooltip": {"trigger": "axis", "axisPointer": {"type": "shadow"}},
        "xAxis": {"type": "value", "name": "us a call", "nameLocation": "middle", "nameGap": 24, **_AXIS}
        | {"splitLine": {"lineStyle": {"color": _GRID}}},
        "yAxis": {"type": "category", "inverse": True, "data": [f"rank {rank.rank}" for rank in ranks], **_AXIS},
        "series": [
            {"name": name, "type": "bar", "stack": "call", "color": colour, "data": [round(us, 1) for us in values]}
            for name, colour, values in parts
        ],
    }
