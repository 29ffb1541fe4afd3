"""Which adapter a model's name leads to."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest

from agent.models import make
from agent.models.anthropic import Anthropic
from agent.models.openai import OpenAI
from tests.agent.provider import KEY


class Google:
    def __init__(self, model: str, **options: Any) -> None:
        self.name, self.options = model, options


def test_native_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    model = make("openai/gpt-5?effort=high")
    assert isinstance(model, OpenAI) and model.name == "openai/gpt-5"
    model = make("anthropic/claude-opus-5")
    assert isinstance(model, Anthropic) and model.name == "anthropic/claude-opus-5"


@pytest.mark.parametrize("provider", ["gemini", "google"])
def test_google_once_it_is_there(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("agent.models.google")
    module.__spec__ = ModuleSpec("agent.models.google", None)
    module.Google = Google  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "agent.models.google", module)
    model: Any = make(f"{provider}/gemini-3-pro?effort=low")
    assert isinstance(model, Google)
    assert (model.name, model.options) == ("gemini-3-pro", {"on_text": None, "effort": "low"})


def test_no_sdk_is_imported_before_it_is_needed() -> None:
    sdks = "('openai', 'anthropic', 'litellm', 'httpx', 'tenacity')"
    check = f"import sys, agent.models, agent.models.calling; print([name for name in {sdks} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
