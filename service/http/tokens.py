"""Tokens, for whoever administers the server."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import Field

from harness.types import Frozen
from service.http import context
from service.http.access import Scope, TokenInfo
from service.http.context import ADMINISTERS
from service.http.errors import responses
from service.http.views import Page

router = APIRouter(
    prefix="/api/v1/tokens",
    tags=["tokens"],
    dependencies=ADMINISTERS,
    responses=responses(401, 403, 404, 409, 422, 429, 503),
)

TokenName = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class TokenAsked(Frozen):
    name: TokenName
    scope: Scope = "read"
    """`read`: look; `run`: also begin and enter runs; `admin`: also make and revoke tokens."""


class NewToken(Frozen):
    name: str
    scope: Scope
    token: str
    """Shown this once: only its hash is kept."""


@router.get("")
def listed(here: context.Here) -> Page[TokenInfo]:
    """All tokens, without their secrets."""
    found = here.tokens.list()
    return Page[TokenInfo](items=tuple(found), total=len(found))


@router.post("", status_code=201)
def create(asked: TokenAsked, here: context.Here) -> NewToken:
    """A new token."""
    return NewToken(name=asked.name, scope=asked.scope, token=here.tokens.create(asked.name, asked.scope))


@router.delete("/{name}")
def revoke(name: Annotated[TokenName, Path()], here: context.Here) -> TokenInfo:
    """The token is taken no more."""
    return here.tokens.revoke(name)
