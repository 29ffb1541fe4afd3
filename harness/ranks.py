"""The supervisor's side of a set of ranks: ask, notice death and silence, kill. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from harness import compiler, proc, removal
from harness.control_group import ControlGroup
from harness.followers import ByControlGroup, ByProc, Followers
from harness.outcomes import Frame, Outcome, RankOutcome, checked_error, describe_exit, parse_stack
from harness.progress import Phase, ProgressBoard
from harness.wire import Channel, ChannelClosedError, GarbledError, readable

_DEADLINES_IN_ALL = 1.5
"""A request ends after this many times its deadline even if the progress words keep changing."""
_STACK_BYTES = 2 << 20
"""So much is read of what a silent rank's threads were doing: a hundred frames of a thread are 10 kB."""
_COMPILER_S = 2.0
"""After so long without progress, and as often, it is looked whether a rank has started a compiler: progress too."""
_GRACE_S = 1.0
"""After one rank has failed, the others get this long to report their own error before they count as waiting."""


class _Home(Protocol):
    """What has made a set of ranks."""

    living: set[RankSet]
    on_wait: Callable[[], None]

    def trim(self) -> None: ...

    def exits(self, name: str, closed: Sequence[int]) -> dict[int, int]: ...

    def kill(self, name: str) -> None: ...


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
        self, nursery: _Home, name: str, scratch: Path, channels: list[Channel], pids: list[int],
        board: ProgressBoard, group: ControlGroup | None = None,
    ) -> None:  # fmt: skip
        self._nursery, self.name, self.scratch = nursery, name, scratch
        self._channels, self.pids, self._board = channels, pids, board
        self._begun: _Begun | None = None
        self.alive = True
        """Whether it can be asked: nobody has ended it or its nursery."""
        self.followers: Followers = ByControlGroup(pids, group) if group is not None else ByProc(pids)
        """What they have started."""

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

    def wanted_s(self) -> float:
        """The same, and that they have waited for."""
        return sum(map(proc.wanted_s, self.pids))

    def delayed_s(self) -> float:
        """For how long, so far, the ranks have waited for a processor that somebody else had."""
        return sum(map(proc.delayed_s, self.pids))

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
