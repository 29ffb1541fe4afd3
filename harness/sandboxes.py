"""Where candidates are evaluated: in this process's own `Sandbox`, on a node, or through a folder. Imports no torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from harness.errors import HarnessError, UsageError
from harness.types import IsolationLevel, Limits, PlatformName

if TYPE_CHECKING:
    from harness.evaluate import Sandbox
    from harness.pool import Pool
    from harness.remote.batch import BatchSandbox
    from harness.remote.client import RemoteSandbox
    from harness.remote.messages import NodeFacts

    AnySandbox: TypeAlias = Sandbox | RemoteSandbox | BatchSandbox

TOKEN_VARIABLE = "RINGSMITH_SANDBOX_TOKEN"
_BATCH = "batch:"
_MOST_ASKED = 64
"""Items that wait in a batch's folder at once."""


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
) -> AnySandbox:
    """A sandbox there, which begins to do something at its first use; the caller closes it. All have the surface of a
    `Sandbox`, which says what each call does and raises. `access` is the environment's unless given. Raises UsageError
    for an address that is none."""
    address = checked(address)
    if not address:
        from harness.evaluate import Sandbox

        return Sandbox(platform, world_size, limits or Limits(), isolation)
    if address.startswith(_BATCH):
        from harness.remote.batch import BatchSandbox

        return BatchSandbox(Path(address.removeprefix(_BATCH)), platform, world_size, limits, isolation)
    from harness.remote.client import RemoteSandbox

    return RemoteSandbox(address, platform, world_size, limits, isolation, access or Access.given())


def open_pool(
    address: str,
    platform: PlatformName,
    world_size: int,
    isolation: IsolationLevel = "auto",
    access: Access | None = None,
) -> Pool:
    """Sandboxes there for many threads at once; the caller closes it. Raises UsageError, and HarnessError where there
    are too few devices or a node cannot be reached."""
    from harness import pool

    address = checked(address)
    if not address:
        return pool.local(platform, world_size, isolation)
    count = _MOST_ASKED if (node := node_facts(address, access)) is None else node.room(platform, world_size)
    if not count:
        raise HarnessError(f"the node {address} does not have {world_size} GPUs")
    members = [open_sandbox(address, platform, world_size, None, isolation, access) for _ in range(count)]
    return pool.Pool(platform, world_size, members)


def node_facts(address: str, access: Access | None = None) -> NodeFacts | None:
    """What the node at a URL is; None for a folder and for here. Raises UsageError or HarnessError."""
    address = checked(address)
    if not address or address.startswith(_BATCH):
        return None
    from harness.remote.client import facts

    return facts(address, access or Access.given())
