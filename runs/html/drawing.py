"""Drawings by matplotlib (extra `plots`) as SVG that takes its colours from the page.

Every colour is drawn as a stand-in that `svg` replaces by a CSS variable of `page.css`, so that one drawing serves dark
and light.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from harness.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, GRID = "#010203", "#010204", "#010205"
SERIES = [f"#01020{c}" for c in "6789abcd"]
"""Colours in turn."""
MODES = [f"#01030{i}" for i in range(9)]
"""Of failure modes, and last of what is correct."""
_STAND_INS = (
    {INK: "var(--ink)", FAINT: "var(--faint)", GRID: "var(--grid)"}
    | {stand_in: f"var(--s{i})" for i, stand_in in enumerate(SERIES)}
    | {stand_in: f"var(--m{i})" for i, stand_in in enumerate(MODES)}
)


def require_matplotlib() -> None:
    """Raises UsageError without it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError("an HTML page needs matplotlib: install the extra `plots`, or use another --format") from None


@contextmanager
def figure(columns: int, rows: int = 1, height: float = 3.2) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure of the page's look and its panels, row by row; `height` of a row in inches."""
    import matplotlib
    from matplotlib.figure import Figure as NewFigure

    style: Any = {
        "svg.fonttype": "none", "svg.hashsalt": "ringsmith", "text.parse_math": False, "font.family": "sans-serif",
        "font.size": 9, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": FAINT, "xtick.color": INK,
        "ytick.color": INK, "grid.color": GRID, "axes.grid": True, "axes.axisbelow": True, "axes.facecolor": "none",
        "figure.facecolor": "none", "savefig.facecolor": "none", "legend.frameon": False, "axes.spines.top": False,
        "axes.spines.right": False, "axes.formatter.min_exponent": 4,
    }  # fmt: skip
    with matplotlib.rc_context(style):
        drawn = NewFigure(figsize=(9, height * rows + 0.3), layout="constrained")
        yield drawn, list(drawn.subplots(rows, columns, squeeze=False).flat)


def svg(figure: Figure, titles: dict[str, str] | None = None) -> str:
    """The drawing as an `<svg>` to stand in a page: its colours the page's, its links (to `#key`) with a tooltip."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)  # the same in every figure
    text = re.sub(r"#0102[0-9a-f]{2}|#0103[0-9a-f]{2}", _variable, text)
    return re.sub(r'<a xlink:href="#([^"]+)"[^>]*>', _titled(titles or {}), text)


def _variable(match: re.Match[str]) -> str:
    return _STAND_INS.get(match.group(0), match.group(0))


def _titled(titles: dict[str, str]) -> Callable[[re.Match[str]], str]:
    def add(match: re.Match[str]) -> str:
        key = match.group(1)
        return f'<a href="#{key}"><title>{escape(titles.get(key, key))}</title>'

    return add
