"""A sandbox on a node, with the surface of `harness.evaluate.Sandbox`. Imports no torch."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Self, TypeVar

from pydantic import ValidationError

from harness.allowance import Allowance
from harness.errors import BudgetEndedError, HarnessError, UsageError
from harness.profile_types import Profile
from harness.remote import suites, work
from harness.remote.connection import Connection, ForgottenError
from harness.remote.files import write_whole
from harness.remote.messages import (
    BuildAheadJob,
    CompileJob,
    EvaluateJob,
    InspectJob,
    Job,
    JobState,
    NodeFacts,
    Order,
    PlainJob,
    ProfileJob,
    Reply,
    SessionSettings,
    Suite,
    identity,
)
from harness.sandboxes import Access
from harness.stages import OnStage
from harness.types import (
    BuildReport,
    Candidate,
    Environment,
    Evaluation,
    IsolationLevel,
    Limits,
    PlatformName,
    Request,
    Topology,
)
from problems.catalogue import Entry
from problems.spec import Case, Work

_T = TypeVar("_T")
_WAIT_S, _LOOK_S = 15.0, 0.5
"""For how long one request waits for a job; where a limit may end the call meanwhile."""
_END_S = 15.0
"""For how long a job that is ended is waited for: it says what it has used."""
_GOODBYE_S = 3.0


def facts(address: str, access: Access) -> NodeFacts:
    """What a node is. Raises UsageError or HarnessError."""
    connection = Connection(address, access)
    try:
        return _comparable(connection.asked(NodeFacts, "GET", "/v1/node"), address)
    finally:
        connection.close()


def _comparable(node: NodeFacts, address: str) -> NodeFacts:
    if node.identity != identity():
        raise UsageError(
            f"the node {address} runs Ringsmith {node.identity}, here is {identity()}: results would not be "
            "comparable; install the same one on both"
        )
    return node


class RemoteSandbox:
    """Connects when first needed. A session that the node has lost is begun again, and the job with it, once. Not
    thread-safe. Raises what a Sandbox raises, and HarnessError if the node cannot be reached."""

    def __init__(
        self,
        address: str,
        platform: PlatformName,
        world_size: int,
        limits: Limits | None,
        isolation: IsolationLevel,
        access: Access,
    ) -> None:
        self.platform_name: PlatformName = platform
        self.world_size = world_size
        self.limits = limits or Limits()
        self._isolation = isolation
        self._connection = Connection(address, access)
        self._node: NodeFacts | None = None
        self._session = ""
        self._topology: Topology | None = None
        self._packed: dict[str, Suite] = {}
        self._sent: set[str] = set()
        """Digests of suites that the node has."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session and its processes on the node. Safe to call twice; the next use begins another."""
        if self._session:
            self._connection.drop(self._session, _GOODBYE_S, anew=True)
            self._session = ""
        self._connection.close()

    def warm_up(self) -> None:
        self._do(PlainJob(do="warm_up"))

    def build_ahead(self, candidates: Sequence[Candidate]) -> None:
        """As many as fit into a request: it is a help, no more."""
        fitting, left = [], self._facts().most_request_bytes // 2
        for candidate in candidates:
            left -= 2 * len(candidate.source.encode("utf-8", "replace"))
            if left < 0:
                break
            fitting.append(candidate)
        self._do(BuildAheadJob(candidates=tuple(fitting)))

    def know(self, report: BuildReport) -> None:
        """Nothing: the node's cache knows what was built there."""

    def usable(self) -> bool:
        """Yes: where a GPU of the node is in quarantine, its session goes on with others."""
        return True

    def compile(self, candidate: Candidate, *, allowance: Allowance | None = None) -> BuildReport:
        return self._got(self._do(CompileJob(candidate=candidate), allowance=allowance).build)

    def evaluate(
        self,
        request: Request,
        on_stage: OnStage | None = None,
        *,
        last: bool = False,
        allowance: Allowance | None = None,
    ) -> Evaluation:
        job = EvaluateJob(request=request, last=last)
        return self._got(self._do(job, request.suite, allowance=allowance, on_stage=on_stage).evaluation)

    def profile(
        self, request: Request, folder: Path, kernel: str = "", *, allowance: Allowance | None = None
    ) -> tuple[Profile, float]:
        job = ProfileJob(request=request, kernel=kernel)
        reply = self._do(job, request.suite, allowance=allowance, folder=folder)
        profile = self._got(reply.profile)
        return profile.model_copy(update={"trace": str(folder / profile.trace)}), reply.device_s

    def topology(self) -> Topology:
        if self._topology is None:
            self._topology = self._got(self._do(PlainJob(do="topology")).topology)
        return self._topology

    def inspect(self, entry: Entry, case: Case, dtype: str) -> Work:
        job = InspectJob.model_validate({"problem": entry.number, "case": case.name, "dtype": dtype})
        return Work(**self._got(self._do(job, entry.suite).work))

    def environment(self) -> Environment:
        return self._got(self._do(PlainJob(do="environment")).environment)

    # -- one job -------------------------------------------------------------------------------------------------------

    def _do(
        self,
        job: Job,
        suite: str = "",
        *,
        allowance: Allowance | None = None,
        on_stage: OnStage | None = None,
        folder: Path | None = None,
    ) -> Reply:
        """What came of it; a fault is raised."""
        allowance = self._connection.allowance = allowance or Allowance()
        try:
            return work.of(work.answer_with_suite(self._asked(job, suite, allowance, on_stage, folder), suite))
        finally:
            self._connection.allowance = Allowance()

    def _asked(
        self, job: Job, suite: str, allowance: Allowance, on_stage: OnStage | None, folder: Path | None
    ) -> Reply:
        order = Order(job=work.with_suite(job, ""), suite=self._suite(suite))
        self._check_size(order, "this request")
        try:
            return self._reply(order, suite, allowance, on_stage, folder)
        except ForgottenError:
            try:
                return self._reply(order, suite, allowance, on_stage, folder)
            except ForgottenError as error:
                raise HarnessError(f"{error}; it was begun again and lost again") from None

    def _got(self, value: _T | None) -> _T:
        if value is None:
            raise HarnessError(f"the node {self._connection.address} answers something else than was asked")
        return value

    def _reply(
        self, order: Order, suite: str, allowance: Allowance, on_stage: OnStage | None, folder: Path | None
    ) -> Reply:
        self._connect()
        if suite:
            self._send_suite(suite)
        path = f"{self._session}/jobs/{secrets.token_hex(16)}"
        state = JobState()
        wait_s = _LOOK_S if allowance.bounded else _WAIT_S
        try:
            now = self._connection.asked(JobState, "PUT", path, order)
            while True:
                for stage in now.stages[len(state.stages) :]:
                    if on_stage is not None:
                        on_stage(stage)
                _charge(allowance, state, now)
                state = now
                if state.reply is not None:
                    break
                allowance.check()
                seen = len(state.stages)
                now = self._connection.asked(JobState, "GET", path, wait_s=wait_s, seen=seen)
            if folder is not None and state.reply.profile is not None:
                trace = self._connection.ask("GET", f"{path}/trace")
                _write(folder / Path(state.reply.profile.trace).name, trace)
        except ForgottenError:
            self._connection.drop(self._session, _GOODBYE_S)
            self._session = ""
            raise
        except BudgetEndedError:  # the node's ranks end too, and say what they have used
            said = self._connection.drop(path, _GOODBYE_S, wait_s=_END_S)
            with contextlib.suppress(ValidationError):
                _charge(allowance, state, JobState.model_validate_json(said or b""))
            raise
        except BaseException:  # also Ctrl-C: whatever ends the waiting ends the job
            self._connection.drop(path, _GOODBYE_S, anew=True)
            raise
        self._connection.drop(path, _GOODBYE_S)
        return state.reply

    def _facts(self) -> NodeFacts:
        if self._node is None:
            self._node = _comparable(self._connection.asked(NodeFacts, "GET", "/v1/node"), self._connection.address)
        return self._node

    def _connect(self) -> None:
        if self._session:
            return
        self._node = None
        self._facts()
        settings = SessionSettings(
            identity=identity(), platform=self.platform_name, world_size=self.world_size, limits=self.limits,
            isolation=self._isolation,
        )  # fmt: skip
        session = f"/v1/sessions/{secrets.token_hex(16)}"
        self._connection.ask("PUT", session, settings)
        self._session = session
        self._sent.clear()

    # -- suites --------------------------------------------------------------------------------------------------------

    def _suite(self, path: str) -> str:
        if not path:
            return ""
        if path not in self._packed:
            self._packed[path] = suites.pack(path)
        return self._packed[path].digest

    def _send_suite(self, path: str) -> None:
        suite = self._packed[path]
        if suite.digest in self._sent:
            return
        if not self._facts().accepts_suites:
            raise UsageError(
                f"the node {self._connection.address} runs its own problems only; those of {path} would run there "
                "without a jail, so whoever runs the node must start it with --accept-suites"
            )
        self._check_size(suite, f"the suite {path}")
        self._connection.ask("PUT", f"/v1/suites/{suite.digest}", suite)
        self._sent.add(suite.digest)

    def _check_size(self, message: Order | Suite, what: str) -> None:
        size, most = len(message.model_dump_json().encode()), self._facts().most_request_bytes
        if size > most:
            raise UsageError(f"{what} has {size} bytes; the node {self._connection.address} takes {most}")


def _charge(allowance: Allowance, before: JobState, now: JobState) -> None:
    """What a job has used in between."""
    allowance.charge(max(0.0, now.device_s - before.device_s))
    allowance.add_wait(max(0.0, now.waited_s - before.waited_s))


def _write(path: Path, content: bytes) -> None:
    try:
        write_whole(path, content)
    except OSError as error:
        raise HarnessError(f"cannot write {path}: {error.strerror or error}") from None
