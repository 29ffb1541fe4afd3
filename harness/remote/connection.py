"""HTTP to a node: a connection that breaks is made again, and nothing that was asked twice is done twice."""

from __future__ import annotations

import ssl
import time
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from harness.allowance import Allowance
from harness.errors import HarnessError, SandboxError, UsageError
from harness.remote.messages import Refusal
from harness.remote.work import exception
from harness.sandboxes import Access

try:
    import httpx
except ImportError:
    raise UsageError("a sandbox on a node needs httpx: pip install 'ringsmith[remote]'") from None

_M = TypeVar("_M", bound=BaseModel)
_ANSWER_S = 30.0
"""For an answer that is not waited for on purpose."""
_FIRST_S = 5.0
"""How long a node that never answered is tried."""
_PAUSE_S = 5.0
"""The longest between two tries."""
_PASSING = frozenset({502, 503, 504})
"""What a proxy says while the node behind it is away."""


class ForgottenError(SandboxError):
    """The node does not know what was asked about: it was started anew, or closed the session."""


class Connection:
    """Requests of one client. Every call may be repeated: ids are the client's, so the node can tell. Not
    thread-safe."""

    def __init__(self, address: str, access: Access) -> None:
        self.address, self._access = address, access
        self.allowance = Allowance()
        """Of the call that is going on: looked at while a node is tried again."""
        self._http: httpx.Client | None = None
        self._answered = False

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    def ask(
        self,
        method: str,
        path: str,
        body: BaseModel | None = None,
        *,
        wait_s: float = 0,
        **query: Any,
    ) -> bytes:
        """The answer's body. `wait_s`: how long the node may take on purpose. Raises UsageError or ProblemError for
        what it refuses, ForgottenError, BudgetEndedError, and HarnessError if it cannot be reached for as long as the
        access's patience."""
        content = body.model_dump_json().encode() if body is not None else None
        query |= {"wait": wait_s} if wait_s else {}
        since, pause_s = time.monotonic(), 0.1
        while True:
            try:
                limits = httpx.Timeout(_ANSWER_S, read=_ANSWER_S + wait_s)
                answer = self._client().request(method, path, content=content, params=query, timeout=limits)
                if answer.status_code not in _PASSING:
                    self._answered = True
                    return self._body(answer)
                said = f"HTTP {answer.status_code}"
            except httpx.TransportError as error:
                said = self._failed(error)
                self.close()
            patience_s = self._access.patience_s
            if time.monotonic() - since > (patience_s if self._answered else min(patience_s, _FIRST_S)):
                self._answered = False  # nobody waits that long again for a node that is away
                raise HarnessError(f"cannot reach the node {self.address}: {said}")
            self.allowance.check()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S)

    def asked(self, model: type[_M], *arguments: Any, **more: Any) -> _M:
        """The same as a message."""
        return _message(model, self.ask(*arguments, **more), self.address)

    def drop(self, path: str, timeout_s: float, *, anew: bool = False, wait_s: float = 0) -> bytes | None:
        """The node may forget this; if it does not hear so, it will by itself, later. `anew`: over a connection of its
        own, because the usual one was interrupted. Returns what it says to that, if it does."""
        if anew:
            self.close()
        try:
            query = {"wait": wait_s} if wait_s else {}
            answer = self._client().delete(path, params=query, timeout=timeout_s + wait_s)
            return answer.content if answer.is_success else None
        except httpx.HTTPError:
            self.close()
            return None

    def _client(self) -> httpx.Client:
        if self._http is None:
            self._http = self._new()
        return self._http

    def _new(self) -> httpx.Client:
        try:
            context = ssl.create_default_context(cafile=self._access.ca) if self.address.startswith("https") else False
        except OSError as error:
            raise UsageError(f"{self._access.ca} is no certificate: {error}") from None
        headers = {"Content-Type": "application/json"}
        if self._access.token:
            headers["Authorization"] = f"Bearer {self._access.token}"
        here = urlsplit(self.address).hostname in ("127.0.0.1", "localhost", "::1")
        return httpx.Client(base_url=self.address, headers=headers, verify=context, trust_env=not here)

    def _failed(self, error: httpx.TransportError) -> str:
        """What to say of it. Raises HarnessError for what no patience mends."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise HarnessError(
                    f"the node {self.address} has a certificate that is not trusted here ({cause.verify_message}): "
                    "name the one that signed it with --sandbox-ca"
                ) from None
            cause = cause.__cause__ or cause.__context__
        return str(error) or type(error).__name__

    def _body(self, answer: httpx.Response) -> bytes:
        if answer.is_success:
            return answer.content
        try:
            refusal = Refusal.model_validate_json(answer.content)
        except ValidationError:
            raise HarnessError(f"{self.address} is no node of Ringsmith's: HTTP {answer.status_code}") from None
        if refusal.kind == "lost":
            raise ForgottenError(f"the node {self.address}: {refusal.message}")
        raise exception(refusal.kind, f"the node {self.address}: {refusal.message}")


def _message(model: type[_M], body: bytes, address: str) -> _M:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        raise HarnessError(
            f"the node {address} answers otherwise than this version expects ({first['loc']}: {first['msg']})"
        ) from None
