"""Models by name. A provider that LiteLLM does not know is one file here and a line in `make`."""

from __future__ import annotations

from pathlib import Path

from agent.models.base import Model
from harness.errors import UsageError


def make(name: str) -> Model:
    """`replay:PATH`, `litellm:PROVIDER/MODEL`, or `PROVIDER/MODEL` for short. Raises UsageError."""
    # Imported on demand: LiteLLM takes seconds to import and is an optional extra.
    prefix, colon, rest = name.partition(":")
    if colon and prefix == "replay":
        from agent.models.replay import Replay

        return Replay(Path(rest))
    model = rest if colon and prefix == "litellm" else name
    provider, slash, bare = model.partition("/")
    if not (provider and slash and bare):
        raise UsageError(f"{name!r} is not a model: write PROVIDER/MODEL (openai/gpt-5) or replay:PATH")
    from agent.models.litellm import LiteLLM

    return LiteLLM(model)
