"""Evaluations without a model, as jobs: they have no record, so that what comes of them is kept in the database."""

from __future__ import annotations

import logging
import threading

from agent.models import redaction
from harness.errors import RingsmithError
from harness.types import Frozen, IsolationLevel, Request
from problems.spec import ProblemError
from service.jobs.pools import Pools
from service.jobs.store import Store

log = logging.getLogger("ringsmith.jobs")


class EvaluationJob(Frozen):
    """`JobRow.asked` of an evaluation."""

    request: Request
    isolation: IsolationLevel = "auto"


class Evaluating:
    """Thread-safe."""

    def __init__(self, store: Store, pools: Pools, stopping: threading.Event) -> None:
        self._store, self._pools, self._stopping = store, pools, stopping

    def do(self, job_id: str) -> None:
        """Make the evaluation; it is made anew if a server ended in the middle of it. Never raises."""
        try:
            job = self._store.job("evaluation", job_id)
            if job is None or job.state not in ("queued", "running"):
                return
            self._store.set_job("evaluation", job_id, "running")
            asked = EvaluationJob.model_validate_json(job.asked)
            try:
                with self._pools.lent(asked.request.platform, asked.request.world_size, asked.isolation) as pool:
                    answer = pool.evaluate(asked.request).model_dump_json()
            except KeyboardInterrupt:
                return  # the server stops
            except (RingsmithError, ProblemError) as error:
                self._store.set_job("evaluation", job_id, "failed", error=redaction.from_error(str(error)))
            else:
                self._store.set_job("evaluation", job_id, "ended", answer=answer)
        except Exception as error:
            log.error("evaluation %s: %s", job_id, redaction.from_error(f"{type(error).__name__}: {error}"))
