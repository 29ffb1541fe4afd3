"""A folder in place of a connection: what is asked lies in manifests, what came of it beside them. Imports no torch.

*.jsonl              one `Item` a line; a person's manifest, or one that a waiting client wrote
candidates/*.py      what their `file` usually names
results/ID.json      an `Answer`, there as a whole or not at all
results/ID.trace.json    of a profile
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, ValidationError

from harness.allowance import Allowance
from harness.errors import HarnessError, UsageError
from harness.profile_types import Profile
from harness.remote import suites, work
from harness.remote.files import write_whole
from harness.remote.messages import Identity, Reply, identity
from harness.stages import OnStage
from harness.types import (
    Backend,
    BuildReport,
    Candidate,
    Check,
    CollectivesRule,
    DType,
    Environment,
    Evaluation,
    Frozen,
    IsolationLevel,
    Limits,
    PlatformName,
    Protocol,
    Request,
    Topology,
)
from problems.catalogue import Entry
from problems.spec import Case, Work

_T = TypeVar("_T")
_LOOK_S, _LIMITED_S, _SELDOM_S = 0.2, 0.5, 5.0
"""How often the folder is looked at: first, and after a while, with a limit and without."""
_COPIED = ("problem", "case", "dtype", "protocol", "check", "trials", "soak", "timing", "collectives", "limits")
"""What an item says as its request does."""


class Item(Frozen):
    """One thing to do. What is left out is as `ringsmith eval` has it on the machine where it is done."""

    id: str = Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}$")
    do: Literal["evaluate", "compile", "profile", "inspect", "topology", "environment"] = "evaluate"
    file: str = ""
    """The candidate, from the folder on; `reference` is the problem's own."""
    candidate: str = ""
    """Its hash, where the file may arrive after the item."""
    problem: int | str | None = None
    suite: str = ""
    """Whose problem, from the folder on."""
    case: str = ""
    platform: PlatformName | None = None
    world_size: int | None = Field(default=None, ge=1, le=64)
    dtype: DType | None = None
    backend: Backend | None = None
    protocol: Protocol = "ringsmith"
    check: Check = "oracle"
    trials: int = Field(default=3, ge=1, le=100)
    soak: int = Field(default=1, ge=1, le=1000)
    timing: bool = True
    collectives: CollectivesRule = "allow"
    kernel: str = ""
    limits: Limits = Limits()
    isolation: IsolationLevel | None = None
    """The least that will do."""
    identity: Identity | None = None
    """Of whoever waits for the answer: it must be the same code that judges."""


class Answer(Frozen):
    """What came of an item."""

    id: str
    text: str
    """As the tool of that name tells a model."""
    reply: Reply
    """Its profile's trace is the name of a file beside this one."""
    identity: Identity


def inside(folder: Path, name: str) -> Path:
    """A path within the folder. Raises UsageError for one that leaves it."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise UsageError(f"{name!r} is not in {folder}")
    return path


def manifest_path(folder: Path, item_id: str) -> Path:
    """Of an item that somebody waits for: its own."""
    return folder / f"{item_id}.jsonl"


def result_path(folder: Path, item_id: str) -> Path:
    return folder / "results" / f"{item_id}.json"


def trace_path(folder: Path, item_id: str) -> Path:
    return folder / "results" / f"{item_id}.trace.json"


def answer(folder: Path, item_id: str) -> Answer | None:
    """None if there is none yet, or only a part of it. Raises HarnessError for a file that is none."""
    path = result_path(folder, item_id)
    try:
        content = path.read_bytes()
        return Answer.model_validate_json(content) if content.endswith(b"\n") else None
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise HarnessError(f"{path} is no result of this version: {str(error).splitlines()[0]}") from None


class BatchSandbox:
    """Asks through a folder and waits, for as long as it takes, until somebody has run `ringsmith eval --batch` on it
    (or a copy, and brought the results back). Surface and errors of a Sandbox. Nothing can be begun ahead, and stages
    are not told. Ctrl-C and a limit take back what was asked.

    Of a wait only the time that the item itself took is work; what it used is known at its end, so that of a call that
    is ended in the middle nothing is counted."""

    def __init__(
        self,
        folder: Path,
        platform: PlatformName,
        world_size: int,
        limits: Limits | None,
        isolation: IsolationLevel,
    ) -> None:
        self.platform_name: PlatformName = platform
        self.world_size = world_size
        self.limits = limits or Limits()
        self._folder, self._isolation = folder, isolation
        self._topology: Topology | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """There is nothing to end."""

    def warm_up(self) -> None:
        """Nothing."""

    def build_ahead(self, candidates: Sequence[Candidate]) -> None:
        """Nothing."""

    def know(self, report: BuildReport) -> None:
        """Nothing: whoever does the items knows what was built there."""

    def usable(self) -> bool:
        return True

    def compile(self, candidate: Candidate, *, allowance: Allowance | None = None) -> BuildReport:
        return _got(self._do("compile", candidate=candidate, allowance=allowance).build)

    def evaluate(
        self,
        request: Request,
        on_stage: OnStage | None = None,
        *,
        last: bool = False,
        allowance: Allowance | None = None,
    ) -> Evaluation:
        return _got(self._do("evaluate", request, allowance=allowance).evaluation)

    def profile(
        self, request: Request, folder: Path, kernel: str = "", *, allowance: Allowance | None = None
    ) -> tuple[Profile, float]:
        item_id = _new_id("profile")
        reply = self._do("profile", request, item_id, kernel=kernel, allowance=allowance)
        profile, target = _got(reply.profile), folder / f"{request.candidate.hash}-{item_id[-6:]}.trace.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(trace_path(self._folder, item_id), target)
        except OSError as error:
            raise HarnessError(f"the trace of {item_id} cannot be copied: {error}") from None
        return profile.model_copy(update={"trace": str(target)}), reply.device_s

    def topology(self) -> Topology:
        if self._topology is None:
            self._topology = _got(self._do("topology").topology)
        return self._topology

    def inspect(self, entry: Entry, case: Case, dtype: str) -> Work:
        given: dict[str, Any] = {
            "suite": self._sent(entry.suite),
            "problem": entry.number,
            "case": case.name,
            "dtype": dtype,
        }
        return Work(**_got(self._do("inspect", **given).work))

    def environment(self) -> Environment:
        return _got(self._do("environment").environment)

    def _do(
        self,
        do: str,
        request: Request | None = None,
        item_id: str = "",
        *,
        candidate: Candidate | None = None,
        allowance: Allowance | None = None,
        **given: Any,
    ) -> Reply:
        """Ask and wait; a fault is raised, a folder that cannot be written to is a HarnessError."""
        item_id = item_id or _new_id(do)
        fields: dict[str, Any] = {"limits": self.limits, **given}
        if request is not None:
            fields |= {name: getattr(request, name) for name in _COPIED} | {"suite": self._sent(request.suite)}
            candidate = request.candidate
        if candidate is not None:
            file = f"candidates/{candidate.hash}.py"
            fields |= {"file": file, "candidate": candidate.hash, "backend": candidate.backend}
        fields |= {"id": item_id, "do": do, "platform": self.platform_name, "world_size": self.world_size}
        item = Item(isolation=self._isolation, identity=identity(), **fields)
        manifest = manifest_path(self._folder, item_id)
        try:
            if candidate is not None:
                write_whole(self._folder / item.file, candidate.source.encode())
            write_whole(manifest, item.model_dump_json().encode() + b"\n")
        except OSError as error:
            raise HarnessError(f"cannot write to {self._folder}: {error.strerror or error}") from None
        try:
            reply = self._waited(item_id, allowance or Allowance())
        except BaseException:
            manifest.unlink(missing_ok=True)
            raise
        return work.of(work.answer_with_suite(reply, request.suite if request else ""))

    def _waited(self, item_id: str, allowance: Allowance) -> Reply:
        pause_s = _LOOK_S
        with allowance.waiting():
            while (found := answer(self._folder, item_id)) is None:
                allowance.check()
                time.sleep(pause_s)
                pause_s = min(1.1 * pause_s, _LIMITED_S if allowance.bounded else _SELDOM_S)
        reply = found.reply
        allowance.add_wait(reply.waited_s - reply.seconds)  # the item's own time was work
        allowance.charge(reply.device_s)
        return reply

    def _sent(self, path: str) -> str:
        """The suite as the folder has it."""
        if not path:
            return ""
        return str(suites.unpack(suites.pack(path), self._folder / "suites").relative_to(self._folder))


def _new_id(do: str) -> str:
    return f"{do}-{secrets.token_hex(8)}"


def _got(value: _T | None) -> _T:
    if value is None:
        raise HarnessError("the result in the batch's folder is of something else")
    return value
