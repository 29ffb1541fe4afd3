"""What strategies say to a model: the templates of `prompts/advice/`, filled in."""

from __future__ import annotations

import jinja2

from tools.pages import PROMPTS

FOLDER = PROMPTS / "advice"

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(FOLDER),
    undefined=jinja2.StrictUndefined,
    autoescape=False,  # Markdown for a model, not HTML
    trim_blocks=True,
    lstrip_blocks=True,
)


def advice(name: str, **facts: object) -> str:
    """A text with its facts filled in. Raises jinja2.UndefinedError if one is missing."""
    return _ENVIRONMENT.get_template(f"{name}.md").render(facts).strip()
