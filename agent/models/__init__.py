"""Models by name. A provider is one file here and two lines in `make`; what has none goes through LiteLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent.models.base import Model, OnText
from harness.errors import UsageError


def make(name: str, on_text: OnText | None = None) -> Model:
    """`PROVIDER/MODEL`, `PROVIDER/MODEL?effort=LEVEL`, `litellm:PROVIDER/MODEL` (LiteLLM also where there is an adapter
    of our own) or `replay:PATH`, `replay:PATH?strict`. `on_text` gets a reply while it is written. Raises UsageError.
    """
    # Imported on demand: SDKs take seconds to import and are an optional extra.
    prefix, colon, rest = name.partition(":")
    if colon and prefix == "replay":
        from agent.models.replay import STRICT, Replay

        return Replay(Path(rest.removesuffix(STRICT)), strict=rest.endswith(STRICT))
    through_litellm = bool(colon) and prefix == "litellm"
    model, options = _options(rest if through_litellm else name)
    provider, slash, bare = model.partition("/")
    if not (provider and slash and bare):
        raise UsageError(f"{name!r} is not a model: write PROVIDER/MODEL (openai/gpt-5) or replay:PATH")
    if provider == "openai" and not through_litellm:
        from agent.models.openai import OpenAI

        return OpenAI(bare, on_text=on_text, **options)
    if provider == "anthropic" and not through_litellm:
        from agent.models.anthropic import Anthropic

        return Anthropic(bare, on_text=on_text, **options)
    if provider in ("gemini", "google") and not through_litellm:
        from agent.models.google import Google

        return Google(bare, on_text=on_text, **options)
    from agent.models.litellm import LiteLLM

    return LiteLLM(model, on_text=on_text, **options)


def _options(name: str) -> tuple[str, dict[str, Any]]:
    """Split `MODEL?effort=high`, so that the one word that is recorded says how the model was asked."""
    model, mark, effort = name.partition("?effort=")
    if (mark and not effort) or "?" in model:
        raise UsageError(f"{name!r}: the only option of a model is ?effort=LEVEL")
    return model, {"effort": effort} if mark else {}
