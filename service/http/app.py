"""The app: routes, errors, and the guard before all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from harness.machine import harness_version
from service.http import errors, evaluations, health, problems, runs, sweeps, tokens
from service.http.access import Tokens
from service.http.context import Context
from service.http.guard import Guard, Rules
from service.jobs.follow import Follower
from service.jobs.keeper import Keeper


def make_app(keeper: Keeper, access: Tokens, rules: Rules | None = None) -> FastAPI:
    """Whoever calls opens `keeper` before and closes it after. Pages may be added to what is returned: they pass the
    same guard, and find who asks in `request.state.grant`, and the keeper in `request.app.state.context`."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.context = Context(keeper, access, Follower(keeper.is_active))
        yield
        app.state.context.follower.close()

    app = FastAPI(
        title="Ringsmith",
        version=harness_version(),
        description="Models write multi-GPU kernels; here they are set to work, followed and graded.",
        lifespan=lifespan,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        separate_input_output_schemas=False,
    )
    for module in (runs, evaluations, sweeps, problems, tokens, health):
        app.include_router(module.router)
    errors.install(app)
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    app.add_middleware(Guard, tokens=access, rules=rules or Rules())
    return app


def _document(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = FastAPI.openapi(app)
        document["components"]["schemas"]["Problem"] = errors.Problem.model_json_schema()
    assert app.openapi_schema is not None
    return app.openapi_schema
