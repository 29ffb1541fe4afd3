"""Errors as clients get them: one line each, no values that were sent, no keys."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from agent.models import redaction
from harness.errors import HarnessError, RingsmithError
from harness.types import Frozen
from harness.wording import one_line
from problems.spec import ProblemError
from service.errors import ConflictError, UnknownError

log = logging.getLogger("ringsmith.http")

_NAMES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    413: "too_large",
    415: "unsupported_media_type",
    422: "unprocessable",
    429: "too_many_requests",
    500: "internal",
    503: "unavailable",
}


class Problem(Frozen):
    """An error."""

    error: str
    """What kind: `not_found`, `conflict`, `unprocessable`, ..."""
    detail: str
    """One line."""


def problem(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """The answer to a request that cannot be."""
    told = Problem(error=_NAMES.get(status, "error"), detail=one_line(redaction.from_error(detail), 1000))
    return JSONResponse(told.model_dump(), status_code=status, headers=headers, media_type="application/problem+json")


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a route says of its errors in the OpenAPI document."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": _NAMES[status].replace("_", " "), "content": content} for status in statuses}


def status_of(error: Exception) -> int:
    if isinstance(error, UnknownError):
        return 404
    if isinstance(error, ConflictError):
        return 409
    return 503 if isinstance(error, HarnessError) else 422


def install(app: FastAPI) -> None:
    @app.exception_handler(RingsmithError)
    @app.exception_handler(ProblemError)
    def _ours(request: Request, error: Exception) -> JSONResponse:
        return problem(status_of(error), str(error).partition("\n")[0])

    @app.exception_handler(RequestValidationError)
    def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "body")
        wrong = "no such field" if first["type"] == "extra_forbidden" else first["msg"].removeprefix("Value error, ")
        return problem(422, f"{place + ': ' if place else ''}{wrong}")

    @app.exception_handler(HTTPException)
    def _http(request: Request, error: HTTPException) -> JSONResponse:
        return problem(error.status_code, str(error.detail), dict(error.headers or {}))

    @app.exception_handler(Exception)
    def _bug(request: Request, error: Exception) -> JSONResponse:
        log.error(
            "%s %s: %s", request.method, request.url.path, redaction.from_error(f"{type(error).__name__}: {error}")
        )
        return problem(500, f"internal: {type(error).__name__} (a bug)")
