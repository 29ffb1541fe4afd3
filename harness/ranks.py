"""The supervisor's side of a set of ranks: start, ask, notice death and silence, kill. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import compiler, proc, removal
from harness.errors import SandboxError
from harness.jail import Jail, prepare
from harness.progress import Phase, ProgressBoard, Words
from harness.wire import (
    MAX_BYTES,
    MAX_UNTRUSTED_BYTES,
    Channel,
    ChannelClosedError,
    GarbledError,
    pair,
    readable,
)
from harness.wording import one_line
from problems.catalogue import Entry
from problems.spec import Case

_SCRATCH_ROOT = Path("/dev/shm")  # shared memory: the exchange files and the cpu platform's symmetric buffers live here
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""glibc gives every large tensor back to the kernel and takes it anew, page by page: a third of a correctness trial on
the cpu platform, and a cost that changes with what else the machine does. All ranks are forks of such a process."""
_DEADLINES_IN_ALL = 1.5
"""A request ends after this many times its deadline even if the progress words keep changing."""
_LOG_BYTES = 16 << 20
"""A log or a file of stacks is cut off when it has become larger."""
_STACK_BYTES = 2 << 20
"""So much is read of what a silent rank's threads were doing: a hundred frames of a thread are 10 kB."""
_COMPILER_S = 2.0
"""After so long without progress, and as often, it is looked whether a rank has started a compiler: progress too."""
_GRACE_S = 1.0
"""After one rank has failed, the others get this long to report their own error before they count as waiting."""


def sweep_scratch() -> None:
    """Remove the scratch folders of supervisors that are gone."""
    for folder in _SCRATCH_ROOT.glob("ringsmith-*"):
        pid = folder.name.split("-")[1]
        if pid.isdigit() and not Path("/proc", pid).exists():
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
        longest = MAX_UNTRUSTED_BYTES if jail else MAX_BYTES
        channels, theirs = zip(*(pair(longest) for _ in range(world_size)), strict=True)
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
        ranks = RankSet(self, name, scratch, list(channels), reply["pids"], board)
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


@dataclass(frozen=True)
class Frame:
    file: str
    line: int
    function: str


@dataclass
class RankOutcome:
    """What came of asking one rank."""

    rank: int
    reply: dict[str, Any] | None = None
    """The reply of a rank that succeeded."""
    error: dict[str, Any] | None = None
    """type, bases, message, line, stack: as the rank reported."""
    exit: str = ""
    """`exit 1`, `SIGSEGV`: the process ended."""
    garbled: bool = False
    """It sent what is no answer to the request."""
    silent: bool = False
    """No answer at the deadline."""
    words: Words | None = None
    stack: tuple[Frame, ...] = ()
    """Of a silent rank, innermost first."""
    busy: float = 0.0
    """Of a silent rank: how much of a processor it used while it was looked at."""

    @property
    def ok(self) -> bool:
        return self.reply is not None


@dataclass
class Outcome:
    """What came of asking all ranks. `ok` only if every one answered well."""

    ranks: list[RankOutcome] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(r.ok for r in self.ranks)

    @property
    def replies(self) -> list[dict[str, Any]]:
        return [r.reply for r in self.ranks if r.reply is not None]


@dataclass
class _Begun:
    """A request whose answers have not been collected."""

    nonce: str
    pending: dict[int, int] = field(default_factory=dict)
    """Descriptor of a rank's channel -> rank."""
    closed: list[int] = field(default_factory=list)


class RankSet:
    """Processes that answer requests together. After a failure the set is spent: kill it."""

    def __init__(
        self, nursery: Nursery, name: str, scratch: Path, channels: list[Channel], pids: list[int], board: ProgressBoard
    ) -> None:
        self._nursery, self.name, self.scratch = nursery, name, scratch
        self._channels, self.pids, self._board = channels, pids, board
        self._begun: _Begun | None = None
        self.alive = True
        """Whether it can be asked: nobody has ended it or its nursery."""

    @property
    def world_size(self) -> int:
        return len(self.pids)

    @property
    def exchange(self) -> Path:
        """Of an untrusted set: the folder of the files by which it gets inputs and hands over outputs."""
        return self.scratch / "exchange"

    @property
    def waiting(self) -> bool:
        """Whether something was begun whose answers nobody has collected."""
        return self._begun is not None

    @property
    def answered(self) -> bool:
        """Whether every rank has answered what was begun, or can do so no more."""
        assert self._begun is not None, "nothing was begun"
        pending = list(self._begun.pending)
        return len(readable(pending, 0.0)) == len(pending)

    def ask(
        self,
        op: str,
        payloads: Sequence[dict[str, Any]] | dict[str, Any],
        *,
        deadline_s: Callable[[Phase], float] | float,
    ) -> Outcome:
        """Send one request to every rank and collect the answers; see `wait` for the deadline."""
        self.begin(op, payloads)
        return self.wait(deadline_s)

    def begin(self, op: str, payloads: Sequence[dict[str, Any]] | dict[str, Any]) -> None:
        """Send one request to every rank; `wait` collects the answers."""
        # A reply must carry its request's nonce: a late or forged one is not taken for the next answer.
        begun = _Begun(secrets.token_hex(8))
        per_rank = [payloads] * self.world_size if isinstance(payloads, dict) else list(payloads)
        for rank, payload in enumerate(per_rank):
            try:
                self._channels[rank].send({**payload, "op": op, "nonce": begun.nonce})
                begun.pending[self._channels[rank].fileno()] = rank
            except ChannelClosedError:
                begun.closed.append(rank)
        self._begun = begun

    def wait(self, deadline_s: Callable[[Phase], float] | float) -> Outcome:
        """The answers to what was begun.

        `deadline_s` is how long, from now on, the set may go without any progress word changing: a number, or a
        function of the slowest rank's phase (a rank that compiles gets longer). Raises BudgetEndedError, with the set
        killed: what it was asked it would answer to somebody else."""
        assert self._begun is not None, "nothing was begun"
        nonce, pending, closed = self._begun.nonce, self._begun.pending, self._begun.closed
        self._begun = None
        outcomes = [RankOutcome(rank) for rank in range(self.world_size)]
        started_ns = last_ns = time.monotonic_ns()
        failed_at: float | None = time.monotonic() if closed else None
        looked, compiled = 0.0, False
        while pending:
            self._check()
            for fd in readable(list(pending), 0.05):
                rank = pending[fd]
                outcome = outcomes[rank]
                try:
                    answer = self._channels[rank].receive(0)
                    if answer.get("nonce") != nonce:
                        raise GarbledError("a reply to another request")
                except TimeoutError:
                    continue
                except GarbledError:
                    outcome.garbled = True
                    failed_at = failed_at or time.monotonic()
                    del pending[fd]
                    continue
                except ChannelClosedError:
                    closed.append(rank)
                    failed_at = failed_at or time.monotonic()
                    del pending[fd]
                    continue
                del pending[fd]
                if answer.get("error") is not None:
                    outcome.error = checked_error(answer["error"])
                    failed_at = failed_at or time.monotonic()
                else:
                    outcome.reply = answer
            if not pending:
                break
            self._nursery.trim()
            now = time.monotonic()
            words = [self._board.read(rank) for rank in pending.values()]
            last_ns = max([last_ns, started_ns, *(w.at_ns for w in words if w.at_ns <= time.monotonic_ns())])
            phases = [w.phase for w in words]
            limit = deadline_s if isinstance(deadline_s, (int, float)) else max(map(deadline_s, phases))
            longest = _DEADLINES_IN_ALL * limit
            if callable(deadline_s) and now > max(last_ns / 1e9, looked) + _COMPILER_S:
                looked = now
                if compiler.at_work(self.pids):  # started by something that no hook of ours has seen
                    last_ns, compiled = time.monotonic_ns(), True
            if compiled and callable(deadline_s):
                longest = max(longest, deadline_s(Phase.building))
            if failed_at is not None and now > failed_at + _GRACE_S:
                break
            # Words belong to the rank: one that keeps writing them would never be silent, so there is an end anyway.
            if now > last_ns / 1e9 + limit or now > started_ns / 1e9 + longest:
                break
        if closed:
            statuses = self._nursery.exits(self.name, closed)
            for rank in closed:
                outcomes[rank].exit = describe_exit(statuses.get(rank))
        if pending:
            self._examine([outcomes[rank] for rank in pending.values()])
        for outcome in outcomes:
            outcome.words = self._board.read(outcome.rank)
        return Outcome(outcomes)

    def _check(self) -> None:
        try:
            self._nursery.on_wait()
        except BaseException:
            self.kill()
            raise

    def _examine(self, silent: list[RankOutcome]) -> None:
        """The Python stack of each rank that did not answer; two looks, as the first may come between two frames."""
        looks: list[list[tuple[Frame, ...]]] = []
        began, used = time.monotonic(), [proc.cpu_s(self.pids[o.rank]) for o in silent]
        for _ in range(2):
            offsets = [self._stack_size(o.rank) for o in silent]
            for outcome in silent:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pids[outcome.rank], signal.SIGUSR1)
            time.sleep(0.15)
            looks.append([self._read_stack(o.rank, at) for o, at in zip(silent, offsets, strict=True)])
        for outcome, first, second, before in zip(silent, *looks, used, strict=True):
            outcome.silent = True
            outcome.busy = (proc.cpu_s(self.pids[outcome.rank]) - before) / (time.monotonic() - began)
            outcome.stack = second or first

    def _stack_size(self, rank: int) -> int:
        path = self.scratch / f"stack.{rank}"
        return path.stat().st_size if path.exists() else 0

    def _read_stack(self, rank: int, offset: int) -> tuple[Frame, ...]:
        path = self.scratch / f"stack.{rank}"
        if not path.exists():
            return ()
        with path.open("rb") as file:  # the rank may write to it as well, and make it as long as it likes
            file.seek(offset)
            return parse_stack(file.read(_STACK_BYTES).decode(errors="replace"))

    def log(self, rank: int, limit: int = 4000) -> str:
        """End of what a rank printed."""
        path = self.scratch / f"log.{rank}"
        if not path.exists():
            return ""
        with path.open("rb") as file:  # as long as the rank liked: never read whole
            file.seek(max(0, file.seek(0, os.SEEK_END) - limit))
            return file.read(limit).decode(errors="replace")

    def cpu_s(self) -> float:
        """Processor time that the ranks have used so far, all their threads together."""
        return sum(map(proc.cpu_s, self.pids))

    def delayed_s(self) -> float:
        """For how long, so far, the ranks have waited for a processor that somebody else had."""
        return sum(map(proc.delayed_s, self.pids))

    def started_cpu_s(self) -> float:
        """The same of living processes that the ranks have started: all others in their jail, or, without one, their
        descendants."""
        theirs = proc.namespace(self.pids[0])
        if theirs == proc.namespace(os.getpid()):
            started = proc.descendants(self.pids)
        else:
            started = {pid for pid in proc.parents() if proc.namespace(pid) == theirs}
        return sum(map(proc.cpu_s, started.difference(self.pids)))

    def forget(self) -> None:
        """Let go of the ranks: with their channels closed they leave by themselves, at the latest with the nursery."""
        self.alive = False
        self._nursery.living.discard(self)
        for channel in self._channels:
            channel.close()
        self._board.close()

    def kill(self) -> None:
        """SIGKILL every rank and whatever it started, and remove the set's files. Safe to call twice."""
        if not self.alive:
            return
        self.forget()
        self._nursery.kill(self.name)
        removal.remove(self.scratch)


# No part of it can go beyond the next one, so that no text takes longer than its length; no number of many digits.
_FRAME = re.compile(r'File "([^"\n]{0,1000})", line ([0-9]{1,9}) in (\S{1,1000})')


def parse_stack(text: str) -> tuple[Frame, ...]:
    """The main thread's frames, innermost first, in a dump of faulthandler's: the thread that took the signal."""
    current = text.partition("Current thread")[2].partition("\n\n")[0]
    return tuple(Frame(f, int(n), fn) for f, n, fn in _FRAME.findall(current))


_MAX_BASES, _MAX_LINE = 100, 10**9


def checked_error(error: Any) -> dict[str, Any]:
    """The error as `harness.rank.describe_error` makes it, whatever the rank sent."""
    given = error if isinstance(error, dict) else {}
    bases, line = given.get("bases"), given.get("line")
    return {
        "type": one_line(given.get("type", "Exception"), 200) or "Exception",
        "bases": [str(base)[:200] for base in bases[:_MAX_BASES]] if isinstance(bases, list) else [],
        "message": str(given.get("message", ""))[:20000],
        "line": line if type(line) is int and 0 <= line <= _MAX_LINE else None,
        "stack": str(given.get("stack", ""))[-6000:],
    }


def describe_exit(status: int | None) -> str:
    """`exit 3`, `SIGSEGV`, or `closed its channel` from a wait status."""
    if status is None:
        return "closed its channel"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return signal.Signals(number).name
        except ValueError:  # real-time signals have no names
            return f"signal {number}"
    return f"exit {os.WEXITSTATUS(status)}"
