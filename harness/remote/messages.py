"""What crosses between a client and the node that evaluates for it. Imports no torch."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from harness.machine import harness_version
from harness.profile_types import Profile as ProfileReport
from harness.types import (
    BuildReport,
    Candidate,
    DType,
    Environment,
    Evaluation,
    Frozen,
    IsolationLevel,
    Limits,
    PlatformName,
    Request,
    Stage,
    Topology,
)

PROTOCOL = 1
"""Of the messages here; paths begin with `/v1`."""

Id = Annotated[str, Field(pattern=r"^[0-9a-f]{16,64}$")]
"""Chosen by the client at random: whoever knows it may ask for what belongs to it."""


class Identity(Frozen):
    """Whose code judges. Results of two that differ are not comparable."""

    protocol: int
    harness: str
    """Version of Ringsmith."""
    code: str
    """Digest of the harness's and the problems' files."""

    def __str__(self) -> str:
        return f"{self.harness} (code {self.code})"


@functools.cache
def identity() -> Identity:
    """This installation's."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for folder in ("harness", "problems"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".py", ".h", ".cuh", ".cpp", ".cu"):
                digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return Identity(protocol=PROTOCOL, harness=harness_version(), code=digest.hexdigest()[:12])


class NodeFacts(Frozen):
    """A node as it presents itself."""

    identity: Identity
    platform: PlatformName
    """Its default."""
    gpus: tuple[str, ...]
    isolation: IsolationLevel
    """The least that a client may ask for."""
    accepts_suites: bool
    most_request_bytes: int
    sessions: int
    """With processes, now."""
    most_sessions: int
    jobs_begun: int
    """Since the server was started."""

    def room(self, platform: PlatformName, world_size: int) -> int:
        """How many sessions can be at work there at once: of two for each set of devices, one measures while the
        other is given its candidate."""
        return min(1 if platform == "cpu" else 2 * (len(self.gpus) // world_size), self.most_sessions)


class SessionSettings(Frozen):
    """What a client's sandbox is made with."""

    identity: Identity
    platform: PlatformName
    world_size: int = Field(ge=1, le=64)
    limits: Limits
    isolation: IsolationLevel


class EvaluateJob(Frozen):
    do: Literal["evaluate"] = "evaluate"
    request: Request
    last: bool = False


class ProfileJob(Frozen):
    do: Literal["profile"] = "profile"
    request: Request
    kernel: str = ""


class CompileJob(Frozen):
    do: Literal["compile"] = "compile"
    candidate: Candidate


class BuildAheadJob(Frozen):
    do: Literal["build_ahead"] = "build_ahead"
    candidates: tuple[Candidate, ...]


class InspectJob(Frozen):
    do: Literal["inspect"] = "inspect"
    problem: int
    suite: str = ""
    case: str
    dtype: DType


class PlainJob(Frozen):
    do: Literal["warm_up", "topology", "environment"]


Job = Annotated[
    EvaluateJob | ProfileJob | CompileJob | BuildAheadJob | InspectJob | PlainJob, Field(discriminator="do")
]
"""One call of a sandbox. A suite in it is a path where it is performed, and "" while it travels."""


class Order(Frozen):
    """A job as it travels."""

    job: Job
    suite: str = ""
    """Digest of the suite whose problem it is (`Suite.digest`); "" for ours."""


class Suite(Frozen):
    """Somebody else's problems, as files."""

    name: str
    """Of the file or the folder."""
    is_file: bool
    files: dict[str, str]
    """Path within the folder -> text."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:32]


class Fault(Frozen):
    """An exception of the other side; the class is kept."""

    kind: Literal["usage", "problem", "harness", "sandbox", "candidate"]
    message: str


class Reply(Frozen):
    """What came of a job: a fault, or the one thing that was asked for."""

    fault: Fault | None = None
    evaluation: Evaluation | None = None
    """Also where a candidate that was to be profiled did not work."""
    build: BuildReport | None = None
    profile: ProfileReport | None = None
    """Its `trace` is the name of a file that travels beside."""
    device_s: float = 0.0
    """Seconds x devices under lease; of a job that failed too."""
    waited_s: float = 0.0
    """Seconds of waiting for the lease."""
    seconds: float = 0.0
    """Of all of it, waiting included."""
    work: dict[str, float] | None = None
    topology: Topology | None = None
    environment: Environment | None = None


class JobState(Frozen):
    """How far a job is."""

    done: bool = False
    stages: tuple[Stage, ...] = ()
    """Entered so far."""
    device_s: float = 0.0
    waited_s: float = 0.0
    """Used so far."""
    reply: Reply | None = None


class Refusal(Frozen):
    """Body of every HTTP answer that is not a success."""

    kind: Literal["usage", "problem", "harness", "sandbox", "lost"]
    """`lost`: the session is not known here (any more); another one may be begun."""
    message: str
