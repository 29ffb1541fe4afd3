"""One request to a provider: how many at once, what is retried, and how a failure is worded. Shared by all adapters."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from agent.models.base import ContextOverflowError, ModelError, OnText
from agent.models.redaction import from_error
from harness.errors import UsageError
from runs.messages import Turn

ATTEMPTS = 10
"""With one request in three failing, as in a provider's bad hour, a reply is lost once in 100 000."""
MAX_BACKOFF_S = 60.0
MAX_ADVISED_S = 600.0
"""A provider that asks for a longer pause (a used-up daily quota) has failed for good."""
SILENCE_S = 900.0
"""Longest wait for the next byte of a reply; reasoning models think for minutes without a word."""
MAX_REPLY_S = 3600.0
"""Longest streamed reply: a server that only keeps the connection alive never falls silent."""


class StreamError(Exception):
    """A failure inside a reply that had begun well. `status_code` is what it would have been as a response."""

    def __init__(self, message: str, status_code: int = 502) -> None:
        super().__init__(message)
        self.status_code = status_code


@dataclass(frozen=True)
class Decision:
    """What is done about one failure of a request."""

    retry: bool
    wait_s: float | None = None
    """What the provider advises; None if it does not say."""
    limited: bool = False
    """Too many requests at once: the gate closes a little."""
    overflow: bool = False
    """The conversation is too long."""


def decide(error: BaseException, lost: tuple[type[BaseException], ...] = ()) -> Decision:
    """The provider's word first, then the status. `lost` are the SDK's exceptions for a connection that broke.

    Never retried: a request that is wrong, a key that is refused, an account without money, a bug of ours.
    """
    if isinstance(error, lost):
        return Decision(retry=True)
    status = _status(error)
    if status is None:
        return Decision(retry=False)
    text = str(error)
    if status in (400, 413) and (status == 413 or _OVERFLOW.search(text)):
        return Decision(retry=False, overflow=True)
    headers = _headers(error)
    wait_s = _advised(headers, text)
    retry = status in (408, 409, 429) or status >= 500
    if (should := headers.get("x-should-retry")) in ("true", "false"):
        retry = should == "true"
    if (wait_s or 0.0) > MAX_ADVISED_S or _NO_MONEY.search(text):
        retry = False
    return Decision(retry=retry, wait_s=wait_s, limited=status == 429)


_OVERFLOW = re.compile(
    r"context_length_exceeded|exceeds? the context window|maximum context length|ContextWindowExceeded"
    r"|prompt is too long|exceed context limit|input token count .*exceeds the maximum",
    re.IGNORECASE,
)
"""As OpenAI (and vLLM, in its manner), LiteLLM, Anthropic and Google word it; only OpenAI has a code for it."""
_NO_MONEY = re.compile(r"insufficient_quota|spend_limit_reached")
"""Sent with 429, the status of a limit that passes."""


def _status(error: BaseException) -> int | None:
    for name in ("status_code", "code"):  # google-genai says `code`; OpenAI's `code` is a word
        if isinstance(status := getattr(error, name, None), int):
            return status
    return None


def _headers(error: BaseException) -> Any:
    # LiteLLM's own field first: the `response` that its exceptions carry is a made-up one.
    for headers in (
        getattr(error, "litellm_response_headers", None),
        getattr(getattr(error, "response", None), "headers", None),
    ):
        if headers is not None:
            return headers
    return {}


def _advised(headers: Any, text: str) -> float | None:
    """Seconds to wait: by header, or by what only the body says (Google's RetryInfo, an error inside a stream)."""
    for value, scale in ((headers.get("retry-after-ms"), 1e-3), (headers.get("retry-after"), 1.0)):
        if value is not None and (seconds := _seconds(value)) is not None:
            return seconds * scale
    if match := re.search(r"""retryDelay['"]:\s*['"]([\d.]+)s""", text):
        return _seconds(match[1])
    if match := re.search(r"try again in ([\d.]+)(ms|s)\b", text):
        seconds = _seconds(match[1])
        return seconds if seconds is None or match[2] == "s" else seconds * 1e-3
    return None


def _seconds(value: str) -> float | None:
    """A number, or the time until a date."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


class Gate:
    """How many requests may be under way at once on one key: fewer after a 429, one more after each full round."""

    START = 20
    MOST = 200
    CUT = 0.8
    COOL_DOWN_S = 15.0
    """After a cut: the requests that were already under way meet the same limit and say nothing new."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._limit = float(self.START)
        self._cut_at = -math.inf
        self._under_way = 0
        self._changed = threading.Condition()

    @property
    def limit(self) -> int:
        return max(1, int(self._limit))

    def enter(self) -> None:
        """Wait for a place."""
        with self._changed:
            self._changed.wait_for(lambda: self._under_way < self.limit)
            self._under_way += 1

    def leave(self, *, succeeded: bool = False, limited: bool = False) -> None:
        with self._changed:
            now = self._clock()
            if now - self._cut_at >= self.COOL_DOWN_S:
                if limited:
                    self._limit = max(1.0, self._limit * self.CUT)
                    self._cut_at = now
                elif succeeded and self._under_way >= self.limit:
                    # Only when all places were taken is a success a sign that there could be more.
                    self._limit = min(float(self.MOST), self._limit + 1 / self._limit)
            self._under_way -= 1
            self._changed.notify_all()


_gates: dict[str, Gate] = {}
_gates_lock = threading.Lock()


def gate(provider: str, key: str, address: str) -> Gate:
    """The one gate of this process for a key at an address. The key itself is not kept."""
    name = hashlib.sha256("\n".join((provider, key, address)).encode()).hexdigest()
    with _gates_lock:
        return _gates.setdefault(name, Gate())


class Caller:
    """Makes one model's requests through a gate, again where `decide` says so."""

    def __init__(
        self,
        name: str,
        gate: Gate,
        *,
        lost: tuple[type[BaseException], ...] = (),
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name` begins every error; `lost` as in `decide`."""
        self._name = name
        self._gate = gate
        self._lost = lost
        self._sleep = sleep
        self._clock = clock

    def __call__(self, request: Callable[[], Turn]) -> Turn:
        """What `request` returns, with `waited_s` filled in. Raises ModelError."""
        import tenacity

        began = asked = self._clock()

        def attempt() -> Turn:
            nonlocal asked
            self._gate.enter()
            succeeded = limited = False
            try:
                asked = self._clock()
                turn = request()
                succeeded = True
                return turn
            except Exception as error:
                limited = self._decide(error).limited
                raise
            finally:
                self._gate.leave(succeeded=succeeded, limited=limited)

        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            retry=tenacity.retry_if_exception(lambda error: self._decide(error).retry),
            wait=self._wait,
            sleep=self._sleep,
            reraise=True,
        )
        try:
            turn = retrying(attempt)
        except Exception as error:
            kind = ContextOverflowError if self._decide(error).overflow else ModelError
            raise kind(f"{self._name}: {one_line(error)}") from None
        return turn.model_copy(update={"waited_s": asked - began})

    def _decide(self, error: BaseException) -> Decision:
        return decide(error, self._lost)

    def _wait(self, state: Any) -> float:
        """Until the next attempt: what the provider asks for, else doubling from a second. Jitter keeps runs apart."""
        advised = self._decide(state.outcome.exception()).wait_s
        if advised is not None:
            return advised + random.random()
        return min(MAX_BACKOFF_S, 2.0**state.attempt_number) * random.uniform(0.5, 1.0)


def sdks(*names: str) -> list[Any]:
    """A provider's libraries, imported. Raises UsageError if one, or what `Caller` needs, is missing."""
    try:
        return [importlib.import_module(name) for name in (*names, "tenacity")][: len(names)]
    except ImportError:
        raise UsageError("models need their SDKs: pip install 'ringsmith[models]'") from None


def shown(on_text: OnText | None) -> OnText:
    """`on_text` (None: nobody watches), silenced for good by the first exception: a reply is paid for."""
    watching = on_text

    def show(text: str, thought: bool) -> None:
        nonlocal watching
        if watching is not None and text:
            try:
                watching(text, thought)
            except Exception:
                watching = None

    return show


def bounded(events: Iterable[Any], clock: Callable[[], float] = time.monotonic) -> Iterator[Any]:
    """A stream's events, for an hour at most."""
    deadline = clock() + MAX_REPLY_S
    for event in events:
        yield event
        if clock() > deadline:
            raise StreamError(f"the reply had not ended after {MAX_REPLY_S:.0f} s", 504)


def plain(value: Any) -> Any:
    """As JSON that can be written as UTF-8: lone surrogates (half an emoji), which models and compilers put out, are
    replaced, and no part is shared with `value`."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


def one_line(error: BaseException) -> str:
    """Kind and message of an error, without anything that is or looks like a key: this text is recorded and shown."""
    kind = type(error).__name__
    text = re.sub(rf"^((litellm\.)?{kind}: )*", f"{kind}: ", str(error), count=1)  # LiteLLM repeats the kind
    if (cause := error.__cause__) and len(text) < 100:
        text += f" ({type(cause).__name__}: {cause})"  # "Connection error." alone says nothing
    text = " ".join(from_error(text).split())
    return text if len(text) <= 400 else text[:400] + " ..."
