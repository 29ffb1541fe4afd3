"""Evaluations of a candidate without a model."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from service.asked import EvaluationAsked
from service.http import context
from service.http.context import READS, KeeperNow, OnceNow, Runner
from service.http.errors import responses
from service.http.views import EvaluationAnswer, evaluation_answer

router = APIRouter(
    prefix="/api/v1/evaluations", tags=["evaluations"], responses=responses(401, 403, 404, 409, 422, 429, 503)
)

EvaluationId = Annotated[str, Path(max_length=200)]
_LOOK_S = 0.2


@router.post("", status_code=202)
def evaluate(
    asked: EvaluationAsked, keeper: KeeperNow, who: Runner, once: OnceNow, response: Response
) -> EvaluationAnswer:
    """Evaluate a candidate; ask for the result by the id. No model, no record."""
    keeper.allow("", asked.suite)
    job_id = keeper.evaluate(asked.resolved(keeper.place), asked.isolation, by=who.name, once=once)
    response.headers["Location"] = f"{router.prefix}/{job_id}"
    return evaluation_answer(keeper.evaluation(job_id))


@router.get("/{evaluation_id}", dependencies=READS)
async def show(
    request: Request,
    evaluation_id: EvaluationId,
    wait: Annotated[float, Query(ge=0, le=60, description="Seconds to wait for the result at most.")] = 0.0,
) -> EvaluationAnswer:
    """How it stands, and the result once it has ended."""
    keeper, until = context.of(request).keeper, time.monotonic() + wait
    while True:
        job = await context.in_thread(keeper.evaluation, evaluation_id)
        if job.state in ("ended", "failed") or time.monotonic() >= until or keeper.stopping.is_set():
            return evaluation_answer(job)
        await asyncio.sleep(_LOOK_S)
