"""What is retried and how, how many requests run at once, and how a failure is worded."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import pytest

from agent.models.base import ContextOverflowError, ModelError
from agent.models.calling import (
    ATTEMPTS,
    MAX_BACKOFF_S,
    Caller,
    Gate,
    StreamError,
    bounded,
    decide,
    gate,
    one_line,
    plain,
    sdks,
    shown,
)
from harness.errors import UsageError
from runs.messages import Turn
from tests.agent.provider import KEY, Time


class Failure(Exception):  # noqa: N818
    """As SDKs raise them: a status, and a response with headers."""

    def __init__(self, status: Any, message: str = "no", **headers: str) -> None:
        super().__init__(message)
        self.status_code = status
        self.response = type("Response", (), {"headers": {k.replace("_", "-"): v for k, v in headers.items()}})()


def google(message: str) -> Exception:
    error = Exception(message)
    error.code = 429  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("error", "retry", "wait_s"),
    [
        (Failure(429), True, None),
        (Failure(408), True, None),
        (Failure(409), True, None),
        (Failure(503), True, None),
        (Failure(529), True, None),
        (Failure(400), False, None),
        (Failure(401), False, None),
        (Failure(403), False, None),
        (Failure(404), False, None),
        (Failure(422), False, None),
        (Failure(429, retry_after="7"), True, 7.0),
        (Failure(429, retry_after="7.5"), True, 7.5),
        (Failure(429, retry_after=formatdate(0, usegmt=True)), True, 0.0),
        (Failure(429, retry_after="soon"), True, None),
        (Failure(429, retry_after="nan"), True, None),
        (Failure(429, retry_after="-3"), True, 0.0),
        (Failure(503, retry_after="9", retry_after_ms="250"), True, 0.25),
        (Failure(429, retry_after="600"), True, 600.0),
        (Failure(429, retry_after="601"), False, 601.0),
        (Failure(500, x_should_retry="false"), False, None),
        (Failure(400, x_should_retry="true"), True, None),
        (Failure(429, x_should_retry="true", retry_after="86400"), False, 86400.0),
        (Failure(429, "insufficient_quota: you have no money"), False, None),
        (google("429 RESOURCE_EXHAUSTED. {'error': {'details': [{'retryDelay': '17s'}]}}"), True, 17.0),
        (google('{"retryDelay": "0.5s"}'), True, 0.5),
        (StreamError("rate_limit_exceeded: Please try again in 250ms.", 429), True, 0.25),
        (StreamError("cut"), True, None),
        (ConnectionResetError(), True, None),
        (KeyError("a bug of ours"), False, None),
        (KeyboardInterrupt(), False, None),
    ],
)
def test_decisions(error: BaseException, retry: bool, wait_s: float | None) -> None:
    decision = decide(error, lost=(ConnectionResetError,))
    assert (decision.retry, decision.wait_s, decision.overflow) == (retry, wait_s, False)
    assert decision.limited == (getattr(error, "status_code", getattr(error, "code", None)) == 429)


@pytest.mark.parametrize(
    "error",
    [
        Failure(400, "Error code: 400 - {'error': {'code': 'context_length_exceeded'}}"),
        Failure(400, "litellm.ContextWindowExceededError: no"),
        Failure(400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."),
        Failure(413),
    ],
)
def test_a_conversation_that_is_too_long(error: Exception) -> None:
    decision = decide(error)
    assert decision.overflow and not decision.retry


def requests(*outcomes: Turn | BaseException) -> Callable[[], Turn]:
    left = list(outcomes)

    def request() -> Turn:
        outcome = left.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return request


def caller(time: Time, gate: Gate | None = None) -> Caller:
    return Caller("p/m", gate or Gate(), sleep=time.sleep, clock=time.clock)


def test_backoff_doubles_and_ends(time: Time) -> None:
    with pytest.raises(ModelError, match=r"^p/m: Failure: no$"):
        caller(time)(requests(*(Failure(500) for _ in range(ATTEMPTS))))
    assert len(time.slept) == ATTEMPTS - 1
    for attempt, slept in enumerate(time.slept, start=1):
        most = min(MAX_BACKOFF_S, 2.0**attempt)
        assert most / 2 <= slept <= most


def test_what_was_waited_is_told(time: Time) -> None:
    turn = caller(time)(requests(Failure(429, retry_after="7"), Failure(503), Turn(text="hi")))
    assert turn.waited_s == pytest.approx(sum(time.slept)) and turn.waited_s >= 7
    assert caller(time)(requests(Turn())).waited_s == 0.0


def test_too_long_is_an_error_of_its_own(time: Time) -> None:
    with pytest.raises(ContextOverflowError):
        caller(time)(requests(Failure(413)))


def test_ctrl_c_goes_through_and_leaves_the_gate(time: Time) -> None:
    passing = Gate()
    with pytest.raises(KeyboardInterrupt):
        caller(time, passing)(requests(KeyboardInterrupt()))
    assert passing._under_way == 0


def test_the_gate_closes_once_per_cool_down_and_opens_again(time: Time) -> None:
    passing = Gate(time.clock)

    def finish(count: int, **how: bool) -> int:
        for _ in range(count):
            passing.enter()
        for _ in range(count):
            passing.leave(**how)
        return passing.limit

    assert passing.limit == 20
    assert finish(20, limited=True) == 16, "a burst is one event"
    assert finish(16, succeeded=True) == 16, "no growth while it cools down"
    time.now += 15
    assert finish(1, limited=True) == 12
    time.now += 15
    assert finish(6, succeeded=True) == 12, "half empty: no sign that there could be more"
    for _ in range(13):
        for _ in range(passing.limit):
            passing.enter()
        passing.leave(succeeded=True)
        for _ in range(passing._under_way):
            passing.leave()
    assert passing.limit == 13
    for _ in range(50):
        time.now += 15
        finish(1, limited=True)
    assert passing.limit == 1, "never shut"


def test_a_retry_gives_its_place_to_others(time: Time) -> None:
    passing = Gate()
    inside: list[int] = []
    waiting = Caller("p/m", passing, sleep=lambda seconds: inside.append(passing._under_way), clock=time.clock)
    waiting(requests(Failure(500), Turn()))
    assert inside == [0]


def test_no_more_than_the_limit_at_once() -> None:
    passing = Gate()
    most, together = 0, threading.Lock()
    full = threading.Barrier(20)

    def work(first: bool) -> None:
        nonlocal most
        passing.enter()
        with together:
            most = max(most, passing._under_way)
        if first:
            full.wait(timeout=10)  # so that the others find no place
        passing.leave()

    threads = [threading.Thread(target=work, args=(number < 20,)) for number in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert (most, passing._under_way) == (20, 0)


def test_one_gate_for_a_key() -> None:
    assert gate("openai", KEY, "a") is gate("openai", KEY, "a")
    assert len({id(gate(*name)) for name in (("openai", KEY, "a"), ("openai", "b", "a"), ("openai", KEY, "b"))}) == 3


def test_a_stream_that_never_ends(time: Time) -> None:
    events = bounded(iter(lambda: time.sleep(1000), ""), time.clock)
    with pytest.raises(StreamError, match="not ended after 3600 s"):
        list(events)
    assert len(time.slept) == 4


def test_plain_is_a_copy_that_can_be_written() -> None:
    given = {"text": "half \ud83d", "list": [1]}
    assert plain(given) == {"text": "half ?", "list": [1]}
    assert plain(given)["list"] is not given["list"]


def test_who_watches_cannot_break_a_reply() -> None:
    seen: list[tuple[str, bool]] = []

    def watching(text: str, thought: bool) -> None:
        seen.append((text, thought))
        if text == "boom":
            raise BrokenPipeError

    show = shown(watching)
    for piece in (("a", True), ("", False), ("boom", False), ("b", False)):
        show(*piece)
    assert seen == [("a", True), ("boom", False)]
    shown(None)("a", False)

    def interrupted(text: str, thought: bool) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shown(interrupted)("a", False)


def test_a_missing_library_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [module.__name__ for module in sdks("json", "email.utils")] == ["json", "email.utils"]
    monkeypatch.setitem(sys.modules, "tenacity", None)
    with pytest.raises(UsageError, match=r"ringsmith\[models\]"):
        sdks("json")


@pytest.mark.parametrize(
    "secret",
    [
        "sk-ant-api03-abc_def-123",
        "sk-proj-****cdef",
        "AIzaSyA1234567890",
        "gsk_abcdef123",
        "hf_abcdef",
        "Bearer abc.def",
        "https://host/path?key=abcdef",
    ],
)
def test_keys_are_not_shown(secret: str) -> None:
    line = one_line(ValueError(f"refused:\n{secret} was wrong"))
    assert line.startswith("ValueError: refused: ") and line.endswith("[key] was wrong")
    assert "abc" not in line and "cdef" not in line and "123" not in line


def test_keys_of_the_environment_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "looks-like-nothing")
    assert one_line(ValueError("looks-like-nothing was refused")) == "ValueError: [key] was refused"
    assert len(one_line(ValueError("x" * 1000))) == 404
