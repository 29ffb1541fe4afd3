"""Who may do what: tokens with a scope, kept as hashes."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sqlalchemy import select

from harness.errors import UsageError
from harness.remote.credentials import checked_token
from harness.types import Frozen
from service.errors import ConflictError, UnknownError
from service.jobs.store import Store
from service.jobs.tables import TokenRow

Scope = Literal["read", "run", "admin"]
SCOPES: tuple[Scope, ...] = ("read", "run", "admin")
"""Each may do what those before it may."""
_PREFIX = "rst"
_REMEMBERED_S = 5.0
"""How long a token that was revoked by another process may still be taken."""


@dataclass(frozen=True)
class Grant:
    """What a request may do."""

    name: str
    """Of the token; empty for somebody at this machine, where no token is asked for."""
    scope: Scope

    def allows(self, wanted: Scope) -> bool:
        return SCOPES.index(self.scope) >= SCOPES.index(wanted)


class TokenInfo(Frozen):
    """A token, without its secret."""

    name: str
    scope: Scope
    created_at: float
    revoked_at: float | None


class Tokens:
    """Thread-safe."""

    def __init__(self, store: Store, given: str = "") -> None:
        """`given`: a token of scope admin that is in no database, from the operator's own file."""
        self._store = store
        self._given = _hash(given) if given else None
        self._known: dict[str, tuple[float, Grant | None]] = {}
        self._lock = threading.Lock()

    def create(self, name: str, scope: Scope) -> str:
        """A new token, which is shown this once. Raises ConflictError if the name is taken."""
        secret, token_id = secrets.token_urlsafe(32), secrets.token_hex(6)
        with self._store.reads() as session:
            if session.scalars(select(TokenRow).where(TokenRow.name == name)).first():
                raise ConflictError(f"there is a token {name!r}: revoked ones keep their names")
        token = f"{_PREFIX}_{token_id}_{secret}"
        with self._store.writes() as session:
            session.add(TokenRow(id=token_id, name=name, scope=scope, hash=_hash(token), at=time.time()))
        return token

    def list(self) -> list[TokenInfo]:
        with self._store.reads() as session:
            return [_info(row) for row in session.scalars(select(TokenRow).order_by(TokenRow.at))]

    def revoke(self, name: str) -> TokenInfo:
        """Raises UnknownError."""
        with self._store.writes() as session:
            row = session.scalars(select(TokenRow).where(TokenRow.name == name)).first()
            if row is None:
                raise UnknownError(f"no token {name!r}")
            row.revoked_at = row.revoked_at or time.time()
            info = _info(row)
        with self._lock:
            self._known.clear()
        return info

    def any(self) -> bool:
        """Whether there is one that is taken."""
        return self._given is not None or any(token.revoked_at is None for token in self.list())

    def grant(self, token: str) -> Grant | None:
        """What the token's holder may do; None if it is none. Asks the database once in a few seconds."""
        hashed, now = _hash(token), time.monotonic()
        if self._given is not None and hmac.compare_digest(self._given, hashed):
            return Grant("token-file", "admin")
        with self._lock:
            until, grant = self._known.get(hashed, (0.0, None))
            if now < until:
                return grant
        grant = self._look_up(token, hashed)
        with self._lock:
            if len(self._known) > 10_000:
                self._known.clear()
            self._known[hashed] = (now + _REMEMBERED_S, grant)
        return grant

    def remembered(self, token: str) -> tuple[bool, Grant | None]:
        """Whether `grant` would answer without asking the database, and what."""
        hashed = _hash(token)
        if self._given is not None and hmac.compare_digest(self._given, hashed):
            return True, Grant("token-file", "admin")
        with self._lock:
            until, grant = self._known.get(hashed, (0.0, None))
        return time.monotonic() < until, grant

    def _look_up(self, token: str, hashed: str) -> Grant | None:
        prefix, _, rest = token.partition("_")
        token_id = rest.partition("_")[0]
        if prefix != _PREFIX or not token_id.isalnum() or not token_id.isascii():
            return None
        with self._store.reads() as session:
            row = session.get(TokenRow, token_id)
            if row is None or row.revoked_at is not None or not hmac.compare_digest(row.hash, hashed):
                return None
            return Grant(row.name, _info(row).scope)


def read_token_file(path: Path) -> str:
    """The token in an operator's file. Raises UsageError if it cannot be read, or could be guessed."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"cannot read the token file {path}") from None
    return checked_token(text, f"the token in {path}")


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def _info(row: TokenRow) -> TokenInfo:
    return TokenInfo.model_validate(
        {"name": row.name, "scope": row.scope, "created_at": row.at, "revoked_at": row.revoked_at}
    )
