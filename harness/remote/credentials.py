"""What the three servers share of whom they let in: what a token is, how a client shows it, and what is this machine's
own. Imports Starlette, no torch."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress

from starlette.datastructures import Headers

from harness.errors import UsageError

LEAST_TOKEN = 20
"""Characters of a secret that a person chooses, at every door that others can reach."""
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
"""This machine's own names in a Host header."""


def checked_token(text: str, what: str = "the token") -> str:
    """`text` without the spaces around it. Raises UsageError, which says `what` it is, for one that could be guessed
    or that no client can send."""
    token = text.strip()
    if len(token) < LEAST_TOKEN or not token.isascii() or len(token.split()) != 1:
        raise UsageError(
            f"{what} must be one word of at least {LEAST_TOKEN} ASCII characters: `openssl rand -hex 32` makes one"
        )
    return token


def token_hash(text: str, what: str = "the token") -> bytes:
    """Of a token, or of a line `sha256:HEX` that is one already. Raises UsageError as `checked_token`."""
    text = text.strip()
    with contextlib.suppress(ValueError):
        if text.startswith("sha256:") and len(digest := bytes.fromhex(text.removeprefix("sha256:"))) == 32:
            return digest
    return hashlib.sha256(checked_token(text, what).encode()).digest()


def bearer(headers: Headers) -> str:
    """The token that a request shows; empty if it shows none."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def shows(headers: Headers, token_hash: bytes) -> bool:
    """Whether a request shows that token."""
    return hmac.compare_digest(hashlib.sha256(bearer(headers).encode()).digest(), token_hash)


def host_name(headers: Headers) -> str:
    """By which name the server is called, without the port."""
    host = headers.get("host", "")
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address to listen at."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
