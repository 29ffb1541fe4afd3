"""Whether the server is there, whether it can work, and how much it does."""

from __future__ import annotations

import os

from fastapi import APIRouter, HTTPException, Response
from sqlalchemy import text

from harness.types import Frozen
from service.http.context import READS, Here
from service.http.errors import responses
from service.http.metrics import exposition

router = APIRouter(tags=["health"])


class Health(Frozen):
    status: str


@router.get("/healthz")
async def healthz() -> Health:
    """The process is there."""
    return Health(status="ok")


@router.get("/readyz", responses=responses(503))
def readyz(here: Here) -> Health:
    """It takes runs: database and folder are there, and it is not about to end."""
    if here.keeper.stopping.is_set():
        raise HTTPException(503, "the server is about to end")
    with here.keeper.store.reads() as session:
        session.execute(text("SELECT 1"))
    if not os.access(here.keeper.root, os.W_OK):
        raise HTTPException(503, "the folder of runs cannot be written")
    return Health(status="ready")


@router.get("/metrics", dependencies=READS, response_class=Response, responses=responses(401, 403, 429))
def metrics(here: Here) -> Response:
    """Prometheus' text format."""
    content, media_type = exposition(here)
    return Response(content, media_type=media_type)
