"""One HTML file from a template. What models, candidates and folders are called reaches it through Jinja's escaping
only, and its own policy runs no script but ours and loads nothing."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.machine import harness_version

_FOLDER = Path(__file__).parent


def page(template: Path, *, styles: Sequence[Path] = (), scripts: Sequence[Path] = (), **values: Any) -> str:
    """The template extends `base.html.j2`. Styles and scripts are put in after the shared ones, so that nothing has to
    be loaded."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader([template.parent, _FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    codes = [_text(script) for script in (_FOLDER / "tables.js", *scripts)]
    return environment.get_template(template.name).render(
        style=Markup("\n".join(_text(style) for style in (_FOLDER / "page.css", *styles))),
        scripts=[Markup(code) for code in codes],
        script_hashes=[base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in codes],
        version=harness_version(),
        made=time.strftime("%Y-%m-%d %H:%M"),
        **values,
    )


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
