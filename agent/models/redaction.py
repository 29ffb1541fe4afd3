"""Keys taken out of what is recorded or shown."""

from __future__ import annotations

import os
import re
from typing import Any

_KEY_LIKE = re.compile(
    r"\b(?:sk|pk|gsk|xai|hf|nvapi|pplx|fw|csk)[-_][\w*.-]+|AIza[\w*-]+|ya29\.[\w*.-]+"
    r"|(?<=Bearer )\S+|(?<=[?&]key=)[^&\s]+",
    re.IGNORECASE,
)
"""In an error: rather too much, since nothing else is lost."""
_KEY = re.compile(
    r"(?<![\w-])(?:sk-[\w-]{16,}|(?:gsk|hf|fw|csk)[-_][A-Za-z0-9]{20,}|(?:xai|nvapi|pplx)-[\w-]{16,}|AIza[\w-]{16,}"
    r"|ya29\.[\w.-]{16,})"
)
"""In a conversation: whole keys only, because a candidate may call a variable `fw_out` and reasoning is base64."""


def from_error(text: str) -> str:
    """Without the keys of this environment and whatever begins like a key, cut-off ones too."""
    return _KEY_LIKE.sub("[key]", _without(text, _own()))


def from_json(value: Any) -> Any:
    """A copy of a JSON value, its texts without the keys of this environment and what has the form of a key."""
    return _each(value, _own())


def _each(value: Any, own: list[str]) -> Any:
    if isinstance(value, str):
        return _KEY.sub("[key]", _without(value, own))
    if isinstance(value, list):
        return [_each(entry, own) for entry in value]
    if isinstance(value, dict):
        return {name: _each(entry, own) for name, entry in value.items()}
    return value


def _own() -> list[str]:
    return [
        value for name, value in os.environ.items() if len(value) >= 8 and re.search(r"KEY|TOKEN|SECRET|PASSWORD", name)
    ]


def _without(text: str, keys: list[str]) -> str:
    for key in keys:
        text = text.replace(key, "[key]")
    return text
