"""What strategies say to a model: the texts of `prompts/advice/`, filled in."""

from __future__ import annotations

from tools.pages import PROMPTS

FOLDER = PROMPTS / "advice"


def advice(name: str, **facts: object) -> str:
    """A text with its names in braces filled in. Raises KeyError if one is missing."""
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8").strip().format(**facts)
