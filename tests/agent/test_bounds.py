"""What is left of a budget bounds a request: each provider's real SDK against a local server."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from agent.models.anthropic import Anthropic
from agent.models.base import Model, ReplyCutError
from agent.models.bounds import LEAST_OUTPUT, Bounds
from agent.models.google import Google
from agent.models.litellm import LiteLLM
from agent.models.openai import OpenAI
from harness.allowance import Allowance
from runs.messages import Usage
from tests.agent import test_anthropic, test_litellm, test_openai
from tests.agent.provider import HELLO, KEY, TOOLS, Answer, Server

pytestmark = pytest.mark.filterwarnings("ignore:Item '.*' on TypedDict class '.*' is using the `ReadOnly` qualifier")
EXPECTED = Usage(input_tokens=1000, cached_tokens=500)
WORDS = 50 * "abcd"
PROVIDERS = ("openai", "anthropic", "google", "litellm")


def gemini(*chunks: dict[str, Any]) -> list[bytes]:
    return [b"data: " + json.dumps(chunk).encode() + b"\r\n\r\n" for chunk in chunks]


def begun(provider: str) -> Answer:
    """The beginning of a reply: fifty tokens by four characters each."""
    if provider == "openai":
        return Answer(events=test_openai.reply(deltas=(WORDS,)).events[:2], stalls=True)
    if provider == "anthropic":
        return Answer(events=test_anthropic.reply(test_anthropic.text(WORDS)).events[:4], stalls=True)
    if provider == "google":
        usage = {"promptTokenCount": 900, "candidatesTokenCount": 50}
        chunk = {"candidates": [{"content": {"parts": [{"text": WORDS}]}}], "usageMetadata": usage}
        return Answer(events=gemini(chunk), stalls=True)
    return Answer(silent=True)


def whole(provider: str) -> Answer:
    if provider == "openai":
        return test_openai.reply(test_openai.said("hi"))
    if provider == "anthropic":
        return test_anthropic.reply(test_anthropic.text("hi"))
    if provider == "google":
        chunk = {"candidates": [{"content": {"parts": [{"text": "hi"}]}, "finishReason": "STOP"}]}
        return Answer(events=gemini(chunk))
    return test_litellm.reply()


NAMES = {
    "openai": "gpt-5",
    "anthropic": "claude-opus-5",
    "google": "gemini-3.1-pro-preview",
    "litellm": "openai/gpt-4o",
}


def make(provider: str, server: Server, name: str = "", **options: Any) -> Model:
    name = name or NAMES[provider]
    if provider == "litellm":
        return LiteLLM(name, api_base=server.url, **options)
    if provider == "openai":
        return OpenAI(name, base_url=server.url, **options)
    return {"anthropic": Anthropic, "google": Google}[provider](name, base_url=server.address, **options)


ENDED = threading.Thread()
ENDED.start()
ENDED.join()


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(name, KEY)


USED = {
    "openai": Usage(input_tokens=1000, cached_tokens=500, output_tokens=50),  # nothing is told before the end
    "anthropic": Usage(input_tokens=105, cached_tokens=90, cache_write_tokens=10, output_tokens=50),
    "google": Usage(input_tokens=900, output_tokens=50),
    "litellm": Usage(input_tokens=1000, cached_tokens=500),
}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_reply_that_is_being_written_is_given_up(server: Server, provider: str) -> None:
    server.answers = [begun(provider)]
    model, bounds = make(provider, server), None

    def over() -> str | None:
        """Once all that the server sends has arrived."""
        arrived = provider == "litellm" or bounds.written or (bounds.said and bounds.said.output_tokens == 50)
        return "wall_s" if server.requests and arrived else None

    bounds, before = Bounds(None, Allowance(over), EXPECTED), set(threading.enumerate())
    with pytest.raises(ReplyCutError) as cut:
        model.reply(HELLO, TOOLS, bounds)
    if provider in ("openai", "anthropic"):
        thread = asking(before)
        thread.join(30)
        assert not thread.is_alive(), "it has hung up, although the server is silent and does not"
    assert (cut.value.limit, cut.value.usage) == ("wall_s", USED[provider])
    assert cut.value.waited_s < 60 and len(server.requests) == 1, "not asked again"


def test_one_that_goes_on_is_hung_up_on(server: Server) -> None:
    """Else it would be read, and paid for, to its end."""
    seen: list[str] = []
    go, answer = threading.Event(), test_openai.reply(test_openai.said("late"), deltas=("a", "b"))

    class Events(list):
        def __iter__(self):
            yield from answer.events[:2]
            go.wait(30)
            yield from answer.events[2:]

    server.answers = [Answer(events=Events())]
    model, others = make("openai", server, on_text=lambda text, thought: seen.append(text)), set(threading.enumerate())
    with pytest.raises(ReplyCutError):
        model.reply(HELLO, TOOLS, Bounds(None, Allowance(lambda: "sweep wall_s" if seen else None)))
    thread = asking(others)
    go.set()
    thread.join(30)
    assert not thread.is_alive() and seen == ["a"]


def asking(before: set[threading.Thread]) -> threading.Thread:
    """The thread that was started since then, or one that has ended."""
    started = [t for t in threading.enumerate() if t.name == "model request" and t not in before]
    return started[0] if started else ENDED


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_bounded_reply_that_comes_in_time(server: Server, provider: str) -> None:
    server.answers = [whole(provider)]
    assert make(provider, server).reply(HELLO, TOOLS, Bounds(None, Allowance(lambda: None))).text == "hi"


def test_a_failure_is_told_from_a_limit(server: Server) -> None:
    """Errors of the thread that asks are raised where they are decided on; pauses are waits that are seen at once."""
    waits: list[float] = []
    use = Allowance(lambda: None)
    server.answers = [test_openai.failure(429, retry_after="3"), whole("openai")]
    model = make("openai", server, sleep=lambda seconds: waits.append(use.waited_s) or time.sleep(0.3))
    turn = model.reply(HELLO, TOOLS, Bounds(None, use))
    assert turn.text == "hi" and len(waits) == 1
    assert turn.waited_s >= 0.3 and use.waited_s >= 0.3


def asked(provider: str, server: Server, tokens: int | None, name: str = "", **options: Any) -> Any:
    server.answers = [whole(provider)]
    make(provider, server, name, **options).reply(HELLO, TOOLS, Bounds(tokens))
    request = server.requests.pop()
    if provider == "google":
        return request.get("generationConfig", {}).get("maxOutputTokens")
    return request.get("max_output_tokens" if provider == "openai" else "max_tokens")


@pytest.mark.parametrize(
    ("provider", "name", "tokens", "sent"),
    [
        ("openai", "", 5000, 5000),
        ("openai", "", None, None),
        ("openai", "", 120_000, 100_000),  # as much as o3 takes
        ("openai", "", 128_000, None),
        ("openai", "gpt-4o", 20_000, 16_384),
        ("openai", "qwen-of-my-own", 32_768, None),
        ("anthropic", "", 5000, 5000),
        ("anthropic", "", 500_000, 128_000),
        ("anthropic", "", None, 128_000),
        ("google", "", 5000, 5000),
        ("google", "", 65_536, None),
        ("litellm", "", 5000, 5000),
        ("litellm", "", 16_384, None),
        ("litellm", "openai/never-heard-of", 20_000, 16_384),
    ],
)
def test_the_longest_reply(server: Server, provider: str, name: str, tokens: int | None, sent: int | None) -> None:
    assert asked(provider, server, tokens, name) == sent


@pytest.mark.filterwarnings("ignore:The model .* is deprecated")  # newer ones think as much as they see fit
def test_thinking_keeps_its_minimum(server: Server) -> None:
    server.answers = [whole("anthropic")]
    make("anthropic", server, "claude-opus-4-5").reply(HELLO, TOOLS, Bounds(LEAST_OUTPUT))
    request = server.requests[0]
    assert request["max_tokens"] == LEAST_OUTPUT > request["thinking"]["budget_tokens"] >= 1024


def test_a_model_by_name_costs_what_its_replies_cost(server: Server) -> None:
    usage = Usage(input_tokens=1_000_000, cached_tokens=500_000, output_tokens=1000)
    for provider in PROVIDERS:
        cost = make(provider, server).cost_usd(usage)
        assert cost is not None and cost > 0, provider
    assert make("openai", server, "never-heard-of").cost_usd(usage) is None
