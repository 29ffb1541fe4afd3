"""A run's speed-ups over its steps, as one drawing."""

from __future__ import annotations

from harness.wording import ratio_text
from runs.attempts import Leader, headline
from runs.html import drawing
from runs.view import View


def over_steps(view: View) -> str:
    """An `<svg>` whose points lead to `#attempt-KEY`. Raises UsageError without matplotlib."""
    drawing.require_matplotlib()
    titles: dict[str, str] = {}
    passed, failed = [], []
    for revision in view.revisions:
        place = f"attempt-{revision.key}"
        if revision.speedup is not None and revision.failed is None:
            passed.append((revision.step, revision.speedup, place))
            titles[place] = f"attempt {revision.key}, step {revision.step}: {ratio_text(revision.speedup)}"
        elif revision.verdict is not None:
            failed.append((revision.step, place))
            said = "correct, not timed" if revision.failed is None else str(revision.verdict)
            titles[place] = f"attempt {revision.key}, step {revision.step}: {said}"
    with drawing.figure(1, height=2.9) as (figure, panels):
        axes, right, wrong = panels[0], drawing.MODES[-1], drawing.MODES[0]
        if passed:
            x, ratios = [step for step, _, _ in passed], [ratio for _, ratio, _ in passed]
            axes.vlines(x, [r.low for r in ratios], [r.high for r in ratios], color=right, linewidth=1, alpha=0.6)
            points = axes.scatter(x, [r.value for r in ratios], s=22, color=right, zorder=3, label="correct")
            points.set_urls([f"#{place}" for _, _, place in passed])
        if failed:
            x = [step for step, _ in failed]
            at_foot = axes.get_xaxis_transform()
            marks = axes.scatter(
                x, [0.04] * len(x), s=22, marker="x", color=wrong, transform=at_foot, label="failed or not timed"
            )
            marks.set_urls([f"#{place}" for _, place in failed])
        x, y = _best_so_far(view)
        if x:
            axes.step([*x, view.state.spend.steps], [*y, y[-1]], where="post", color=right, linewidth=1, label="best")
        axes.axhline(1.0, color=drawing.FAINT, linewidth=0.8)
        if (target := view.state.config.target.speedup) is not None:
            axes.axhline(target, color=drawing.SERIES[1], linewidth=1, linestyle="--", label="target")
        if y and max(y) > 8:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        else:
            axes.set_ylim(bottom=0, top=None if y else 2)
        axes.set(xlabel="step", ylabel="speed-up", xlim=(0, max(1, view.state.spend.steps) + 0.5))
        if axes.get_legend_handles_labels()[1]:
            figure.legend(loc="outside upper left", ncols=4, fontsize=8)
        return drawing.svg(figure, titles)


def _best_so_far(view: View) -> tuple[list[int], list[float]]:
    leader, x, y = Leader(), list[int](), list[float]()
    for attempt in view.state.attempts:
        leader.add(attempt)
        if leader.best and leader.best.measurement:
            x.append(attempt.step)
            y.append(headline(leader.best.measurement).value)
    return x, y
