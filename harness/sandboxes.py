"""Where candidates are evaluated: in this process's own `Sandbox`, on a node, or through a folder. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from harness.errors import UsageError
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

if TYPE_CHECKING:
    from harness.profile_types import Profile
    from harness.remote.messages import NodeFacts
    from harness.stages import OnStage

TOKEN_VARIABLE = "RINGSMITH_SANDBOX_TOKEN"
_BATCH = "batch:"


class SandboxLike(Protocol):
    """What runs, tools and commands ask of a sandbox; `harness.evaluate.Sandbox` says what each does and raises."""

    platform_name: PlatformName
    world_size: int
    limits: Limits

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...
    def close(self) -> None: ...
    def warm_up(self) -> None: ...
    def build_ahead(self, candidates: Sequence[Candidate]) -> None: ...
    def compile(self, candidate: Candidate) -> BuildReport: ...
    def evaluate(self, request: Request, on_stage: OnStage | None = None, *, last: bool = False) -> Evaluation: ...
    def profile(self, request: Request, folder: Path, kernel: str = "") -> tuple[Profile, float]: ...
    def inspect(self, entry: Entry, case: Case, dtype: str) -> Work: ...
    def topology(self) -> Topology: ...
    def environment(self) -> Environment: ...


@dataclass(frozen=True)
class Access:
    """What a client shows a node and how it knows it."""

    token: str = ""
    ca: Path | None = None
    """Certificate that signed the node's, where no authority of this machine did."""
    patience_s: float = 300.0
    """For how long a lost connection is tried again."""

    @classmethod
    def given(cls, token_file: Path | None = None, ca: Path | None = None) -> Access:
        """From the file, else from the environment. Raises UsageError if a file cannot be read."""
        for path in (token_file, ca):
            if path is not None and not path.is_file():
                raise UsageError(f"no file {path}")
        if token_file is None:
            return cls(os.environ.get(TOKEN_VARIABLE, "").strip(), ca)
        try:
            return cls(token_file.read_text(encoding="utf-8").strip(), ca)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {token_file}: {error}") from None


def checked(address: str) -> str:
    """The address as it is recorded: a node's URL, or `batch:` with an absolute path. "" is here. Raises UsageError."""
    if not address:
        return ""
    if address.startswith(_BATCH) and len(address) > len(_BATCH):
        return _BATCH + str(Path(address.removeprefix(_BATCH)).expanduser().resolve())
    scheme, _, rest = address.partition("://")
    if scheme not in ("http", "https") or not rest:
        raise UsageError(f"--sandbox takes http://HOST:PORT, https://HOST:PORT or batch:FOLDER, not {address!r}")
    if "@" in rest or "?" in rest or "#" in rest:
        raise UsageError("--sandbox takes no user, password or query: addresses are recorded, tokens go into a file")
    return address.rstrip("/")


def open_sandbox(
    address: str,
    platform: PlatformName,
    world_size: int,
    limits: Limits | None = None,
    isolation: IsolationLevel = "auto",
    access: Access | None = None,
) -> SandboxLike:
    """A sandbox there, which begins to do something at its first use; the caller closes it. `access` is the
    environment's unless given. Raises UsageError for an address that is none."""
    address = checked(address)
    if not address:
        from harness.evaluate import Sandbox

        return Sandbox(platform, world_size, limits or Limits(), isolation)
    if address.startswith(_BATCH):
        from harness.remote.batch import BatchSandbox

        return BatchSandbox(Path(address.removeprefix(_BATCH)), platform, world_size, limits, isolation)
    from harness.remote.client import RemoteSandbox

    return RemoteSandbox(address, platform, world_size, limits, isolation, access or Access.given())


def node_facts(address: str, access: Access | None = None) -> NodeFacts | None:
    """What the node at a URL is; None for a folder and for here. Raises UsageError or HarnessError."""
    address = checked(address)
    if not address or address.startswith(_BATCH):
        return None
    from harness.remote.client import facts

    return facts(address, access or Access.given())
