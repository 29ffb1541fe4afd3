"""The fork server that all ranks come from, and the folders of their sets. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import removal
from harness.control_group import ControlGroup
from harness.errors import SandboxError
from harness.jail import Jail, prepare
from harness.progress import ProgressBoard
from harness.ranks import RankSet
from harness.wire import ChannelClosedError, GarbledError, pair
from problems.catalogue import Entry
from problems.spec import Case

_SCRATCH_ROOT = Path("/dev/shm")  # shared memory: the exchange files and the cpu platform's symmetric buffers live here
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""glibc gives every large tensor back to the kernel and takes it anew, page by page: a third of a correctness trial on
the cpu platform, and a cost that changes with what else the machine does. All ranks are forks of such a process."""
_LOG_BYTES = 16 << 20
"""A log or a file of stacks is cut off when it has become larger."""


def sweep_scratch() -> None:
    """Remove the scratch folders of supervisors that are gone."""
    for folder in removal.orphans(_SCRATCH_ROOT):
        removal.remove(folder)


class Nursery:
    """Owns the fork server and the scratch folder of one supervisor; makes rank sets."""

    def __init__(self, environment: Mapping[str, str], on_wait: Callable[[], None] = lambda: None) -> None:
        """`environment` is what the fork server starts with: a forked rank can read it all its life. `on_wait` is
        called while ranks are waited for; what it raises ends them."""
        sweep_scratch()
        self.on_wait = on_wait
        self.scratch = _SCRATCH_ROOT / f"ringsmith-{os.getpid()}-{secrets.token_hex(3)}"
        self.scratch.mkdir(mode=0o711)  # a set's ranks may have another uid, and no mounts of their own
        self._sets = 0
        self.living: set[RankSet] = set()
        self._control, theirs = pair()
        # This process's own harness first: "" may be how it found it (`python -c`), another one may be installed.
        path = [str(Path(__file__).resolve().parent.parent), *sys.path]
        fixed = {"PYTHONPATH": os.pathsep.join(p for p in path if p), "OMP_NUM_THREADS": "1"}
        # Without -P the current folder would come first: some other checkout's harness.
        flags = ["-P", *(["-B"] if sys.dont_write_bytecode else [])]
        self._log = (self.scratch / "forkserver.log").open("wb")
        self._process = subprocess.Popen(
            [
                *(sys.executable, *flags, "-W", "ignore", "-m", "harness.forkserver"),
                *(str(theirs.fileno()), str(self.scratch)),
            ],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**environment, **_MALLOC, **fixed},
            start_new_session=True,
        )
        theirs.close()
        self._versions: dict[str, str] | None = None

    @property
    def versions(self) -> dict[str, str]:
        """`torch`, `cuda` and `python` of the ranks; waits for the fork server's imports the first time."""
        if self._versions is None:
            self._versions = self._ask({"op": "hello"}, timeout_s=120)
        return self._versions

    def _ask(self, message: dict[str, Any], fds: tuple[int, ...] = (), timeout_s: float = 60.0) -> dict[str, Any]:
        try:
            self._control.send(message, fds)
            return self._control.receive(timeout_s)
        except (ChannelClosedError, GarbledError, TimeoutError) as error:
            self._log.flush()
            tail = (self.scratch / "forkserver.log").read_text(errors="replace")[-2000:].strip()
            raise SandboxError(
                f"the fork server failed ({type(error).__name__}): {tail or 'it said nothing'}"
            ) from None

    def check(self) -> None:
        """Raises SandboxError if the fork server does not answer or its folder is gone."""
        self._ask({"op": "hello"}, timeout_s=10)
        if not self.scratch.is_dir():
            raise SandboxError("the scratch folder is gone")

    def inspect(self, entry: Entry, case: Case, world_size: int, dtype: str) -> dict[str, Any]:
        """`illegal` (why the problem cannot run so, or None) and `work`, from the problem's own code."""
        return self._ask(
            {
                "op": "inspect", "problem": entry.number, "suite": entry.suite,
                "case": case.name, "sizes": dict(case.sizes), "world_size": world_size, "dtype": dtype,
            },
            timeout_s=120,
        )  # fmt: skip

    def spawn(
        self, role: str, world_size: int, settings: dict[str, Any], locks: Sequence[int] = (), jail: Jail | None = None
    ) -> RankSet:
        """Fork `world_size` processes that run `harness.rank` in the given role. They get copies of the descriptors in
        `locks` and close them once connected. With `jail` they are untrusted, and confined by it as far as it goes.
        Raises SandboxError."""
        _ = self.versions
        self._sets += 1
        name = f"{role}-{self._sets}"
        scratch = self.scratch / name
        try:
            scratch.mkdir(mode=0o700)
            board = ProgressBoard(scratch / "progress", world_size, create=True)
            homes = _furnish(scratch, world_size, jail) if jail else dict.fromkeys(_HOMES, str(scratch))
        except OSError as error:  # a candidate can remove this folder; fresh processes bring a fresh one
            raise SandboxError(f"the scratch folder is unusable: {error}") from None
        channels, theirs = zip(*(pair(untrusted=jail is not None) for _ in range(world_size)), strict=True)
        message = settings | {
            "op": "spawn", "set": name, "role": role, "world_size": world_size, "scratch": str(scratch),
            "environment": settings["environment"] | homes,
            "jail": jail.settings(scratch, devices=role != "build") if jail else None,
        }  # fmt: skip
        try:
            reply = self._ask(message, (*(s.fileno() for s in theirs), *locks))
            if "error" in reply:
                raise SandboxError(f"making the jail of {name} failed: {reply['error']}")
        except SandboxError:
            for channel in channels:
                channel.close()
            board.close()
            raise
        finally:
            for sock in theirs:
                sock.close()
        group = ControlGroup(folder) if jail and (folder := jail.group(scratch)) else None
        ranks = RankSet(self, name, scratch, list(channels), reply["pids"], board, group)
        self.living.add(ranks)
        return ranks

    def trim(self) -> None:
        """Cut off what ranks have printed without end, before it fills the memory that all share."""
        for ranks in self.living:
            for rank in range(ranks.world_size):
                for path in (ranks.scratch / f"log.{rank}", ranks.scratch / f"stack.{rank}"):
                    with contextlib.suppress(OSError):
                        if path.lstat().st_size > _LOG_BYTES:
                            os.truncate(path, 0)

    def exits(self, name: str, closed: Sequence[int]) -> dict[int, int]:
        """Rank -> wait status of those that have ended. Raises SandboxError if their jail has: that is nobody's doing
        inside."""
        reply = self._ask({"op": "exited", "set": name, "closed": list(closed)})
        if reply["jail_ended"]:
            raise SandboxError(f"the jail of {name} has been ended from outside")
        return {int(rank): status for rank, status in reply["exits"].items()}

    def kill(self, name: str) -> None:
        left = self._ask({"op": "kill", "set": name})["left"]
        if left:
            raise SandboxError(f"{left} processes of {name} survive SIGKILL (stuck in the driver?)")

    def close(self) -> None:
        """Kill everything. Closing the control socket is enough: the fork server then kills all it ever forked."""
        for ranks in list(self.living):
            ranks.forget()
        self._control.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        removal.remove(self.scratch)


_HOMES = ("HOME", "TMPDIR", "RINGSMITH_SYMMETRIC")


def _furnish(scratch: Path, world_size: int, jail: Jail) -> dict[str, str]:
    """The folder of an untrusted set: what its processes may write is made here, all the rest is closed to them.
    Returns the variables that name their folders."""
    scratch.chmod(0o755)
    (scratch / "exchange").mkdir()
    (scratch / "exchange").chmod(0o755)
    for rank in range(world_size):
        _give(scratch / "exchange" / f"outputs.{rank}", jail.uid, folder=False)
        (scratch / "exchange" / f"inputs.{rank}").touch()
        (scratch / "exchange" / f"inputs.{rank}").chmod(0o644)
    for name in ("out", "cache", "tmp"):
        _give(scratch / name, jail.uid, folder=True)
    cache = {"RINGSMITH_CACHE": str(scratch / "cache"), "TRITON_CACHE_DIR": str(scratch / "cache" / "triton")}
    if jail.own_files:
        prepare(scratch)
        return cache | dict(zip(_HOMES, ("/tmp", "/tmp", "/dev/shm"), strict=True))
    return cache | dict.fromkeys(_HOMES, str(scratch / "tmp"))


def _give(path: Path, uid: int | None, folder: bool) -> None:
    if folder:
        path.mkdir(mode=0o755)
    else:
        path.touch(mode=0o600)
    if uid is not None:
        os.chown(path, uid, uid)
