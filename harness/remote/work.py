"""One job done by a sandbox, and its answer turned into a value or an exception again. Imports no torch."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

from harness.allowance import Allowance
from harness.errors import HarnessError, RingsmithError, SandboxError, UsageError
from harness.evaluate import CandidateFailedError, Sandbox
from harness.remote.messages import (
    BuildAheadJob,
    CompileJob,
    EvaluateJob,
    Fault,
    InspectJob,
    Job,
    ProfileJob,
    Reply,
)
from harness.stages import OnStage
from problems import catalogue
from problems.spec import ProblemError


def perform(sandbox: Sandbox, job: Job, folder: Path, on_stage: OnStage, allowance: Allowance) -> Reply:
    """Never raises an Exception. A trace is written into `folder`, and named in the reply without it."""
    began = time.monotonic()
    reply = _answer(sandbox, job, folder, on_stage, allowance)
    used = {"device_s": allowance.device_s, "waited_s": allowance.waited_s, "seconds": time.monotonic() - began}
    return reply.model_copy(update=used)


def _answer(sandbox: Sandbox, job: Job, folder: Path, on_stage: OnStage, allowance: Allowance) -> Reply:
    try:
        return _performed(sandbox, job, folder, on_stage, allowance)
    except CandidateFailedError as failed:
        return Reply(fault=Fault(kind="candidate", message=str(failed)), evaluation=failed.evaluation)
    except ProblemError as error:
        return fault("problem", error)
    except UsageError as error:
        return fault("usage", error)
    except SandboxError as error:
        return fault("sandbox", error)
    except RingsmithError as error:
        return fault("harness", error)
    except Exception as error:
        return fault("harness", f"internal: {type(error).__name__}: {error} (a bug on the node)")


def fault(kind: str, message: object) -> Reply:
    """A reply that is an exception, of a kind of `Fault`."""
    return Reply(fault=Fault.model_validate({"kind": kind, "message": str(message)}))


def of(reply: Reply) -> Reply:
    """The reply, if it is none of a fault; otherwise raises what it says."""
    if reply.fault is None:
        return reply
    if reply.fault.kind == "candidate" and reply.evaluation is not None:
        raise CandidateFailedError(reply.evaluation)
    raise exception(reply.fault.kind, reply.fault.message)


def exception(kind: str, message: str) -> Exception:
    """The exception of a kind of `Fault`."""
    kinds = {"usage": UsageError, "problem": ProblemError, "sandbox": SandboxError}
    return kinds.get(kind, HarnessError)(message)


def with_suite(job: Job, suite: str) -> Job:
    """The job about a problem of that suite: a path, or "" for ours."""
    if isinstance(job, EvaluateJob | ProfileJob):
        return job.model_copy(update={"request": job.request.model_copy(update={"suite": suite})})
    return job.model_copy(update={"suite": suite}) if isinstance(job, InspectJob) else job


def answer_with_suite(reply: Reply, suite: str) -> Reply:
    """The reply as the side that has the suite there would have got it."""
    if reply.evaluation is None or reply.evaluation.suite == suite:
        return reply
    return reply.model_copy(update={"evaluation": reply.evaluation.model_copy(update={"suite": suite})})


def _performed(sandbox: Sandbox, job: Job, folder: Path, on_stage: OnStage, allowance: Allowance) -> Reply:
    if isinstance(job, EvaluateJob):
        return Reply(evaluation=sandbox.evaluate(job.request, on_stage, last=job.last, allowance=allowance))
    if isinstance(job, ProfileJob):
        profile, _ = sandbox.profile(job.request, folder, job.kernel, allowance=allowance)
        return Reply(profile=profile.model_copy(update={"trace": Path(profile.trace).name}))
    if isinstance(job, CompileJob):
        return Reply(build=sandbox.compile(job.candidate, allowance=allowance))
    if isinstance(job, InspectJob):
        entry = catalogue.find(job.problem, job.suite)
        work = sandbox.inspect(entry, catalogue.select_case(entry, job.case), job.dtype)
        return Reply(work=asdict(work))
    if isinstance(job, BuildAheadJob):
        sandbox.build_ahead(job.candidates)
        return Reply()
    if job.do == "topology":
        return Reply(topology=sandbox.topology())
    if job.do == "environment":
        return Reply(environment=sandbox.environment())
    sandbox.warm_up()
    return Reply()
