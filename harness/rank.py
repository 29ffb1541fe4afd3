"""A rank's life after the fork: environment, device, process group, then requests until the channel closes.

Roles: `reference` (trusted, long-lived), `candidate` (untrusted, used once), `build` (one process, no device).
"""

from __future__ import annotations

import builtins
import contextlib
import difflib
import faulthandler
import gc
import itertools
import os
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.profiler  # imported before the fork: profiling must not pay for it
from torch._C._distributed_c10d import TCPStore

from harness import platforms
from harness.errors import HarnessError
from harness.exchange import Exchange
from harness.groups import Groups
from harness.platforms import Hooks, Plan, Platform, Times, cuda
from harness.progress import Progress, ProgressBoard
from harness.ring import Exchanging, Ring, Use
from harness.wire import Channel, ChannelClosedError
from harness.wording import one_line

Handler = Callable[[dict[str, Any]], dict[str, Any]]
_now_ns = time.perf_counter_ns  # bound before any candidate can replace them
_threads, _set_threads = torch.get_num_threads, torch.set_num_threads
_MOST_TEXT, _MOST_STACK = 20000, 6000
"""Characters of an error's message and of its stack that are handed on."""


class Rank:
    """What every role has: place in the world, device, progress words, exchange files."""

    def __init__(self, settings: dict[str, Any], rank: int, listener: socket.socket) -> None:
        self.settings, self.rank = settings, rank
        self.world_size: int = settings["world_size"]
        self.scratch = Path(settings["scratch"])
        self.platform: Platform = platforms.get(settings["platform"])
        self.progress = Progress(ProgressBoard(self.scratch / "progress", self.world_size), rank)
        self.device: torch.device | None = None
        self.exchange: dict[str, Exchange] = {}
        self._listener = listener
        self.groups = Groups()
        self.use = Use()
        """What may happen to the problem's arguments."""
        self.ring = Ring([], 1)

    def connect(self, message: dict[str, Any], then: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Context, process group, first rendezvous, `then`. Reply: `seconds` that it took, and of each part.

        May run long before anybody asks for its outcome, and meanwhile this process holds the lease: it ends itself if
        it gets stuck."""
        signal.alarm(message["limit_s"])
        if "dumps" in message:
            cuda.dump_crashes(message["dumps"])
        marks = [("", time.monotonic())]

        def part(name: str) -> None:
            marks.append((name, time.monotonic()))

        port = self._listener.getsockname()[1]
        os.environ |= {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
            "NCCL_SOCKET_IFNAME": "lo",
        }
        fd = self._listener.detach() if self.rank == 0 else None
        store = TCPStore(
            "127.0.0.1", port, self.world_size, self.rank == 0, timedelta(seconds=120), master_listen_fd=fd
        )
        part("store")
        self.device = self.platform.start(self.rank, self.world_size, store, part)
        self._own = _threads()
        self._memory = self.platform.symmetric(4096, sequence=0)
        self.align = self._memory.barrier
        part("rendezvous")
        self.probe({"value": 1})  # the first collective and the first kernels are slow too
        part("first calls")
        then()
        part("communicators")
        signal.alarm(0)
        for lock in self.settings["locks"]:
            os.close(lock)
        parts = {name: at - before for (_, before), (name, at) in itertools.pairwise(marks)}
        return {"seconds": sum(parts.values()), "parts": parts}

    def probe(self, message: dict[str, Any]) -> dict[str, Any]:
        """A kernel, a copy to each peer and a collective. Raises if device, links or process group do not work."""
        value, ranks = message["value"], range(self.world_size)
        sent = torch.full((64,), value + self.rank, dtype=torch.uint8, device=self.device)
        self.align()
        for peer in self._memory.peers:
            peer[64 * self.rank : 64 * (self.rank + 1)].copy_(sent)
        self.align()
        total = self._memory.local[: 64 * self.world_size].long().sum()
        torch.distributed.all_reduce(total)
        if int(total) != 64 * self.world_size * sum(value + rank for rank in ranks):
            raise HarnessError("copies between devices arrive wrong")
        return {}

    def attach(self, message: dict[str, Any]) -> dict[str, Any]:
        """Use the exchange files in `folder` from now on."""
        for name in ("inputs", "outputs"):
            self.exchange[name] = Exchange(Path(message["folder"]) / f"{name}.{self.rank}")
        return {}

    def rotate(self, slots: dict[int, tuple[Any, ...]], copies: int, exchange: Exchanging = "never") -> None:
        """Repeated calls go round these slots and `copies - 1` clones of each: no call finds in a cache what another
        has just read."""
        self.platform.forget()
        self.ring = Ring([slots[slot] for slot in sorted(slots)], copies, self.use, exchange)

    @contextlib.contextmanager
    def _own_threads(self) -> Iterator[None]:
        """torch works with the number of threads that it was started with, not with one that a candidate has set: timed
        ranks have a core each, and so the inputs of both sides are written alike."""
        theirs = _threads()
        if theirs == self._own:
            yield
            return
        _set_threads(self._own)
        try:
            yield
        finally:
            _set_threads(theirs)

    def time(
        self, call: Callable[[int], Any], message: dict[str, Any], take: Callable[[int, Any], None]
    ) -> dict[str, Any]:
        """One block of timed calls; `call(i)` makes the i-th, `take` copies audited outputs. Reply: what `Times` has,
        or `not_capturable`."""
        plan = Plan(**message["plan"])
        if message["mode"] == "steady":  # PKB's method, as it is
            self.ring.restore()
            return asdict(Times(self.platform.time_steady(call, plan.samples, self.progress.touch), []))

        def entries(turn: int) -> range:
            # A graph makes the same calls in every sample.
            first = 0 if message["mode"] == "device" else turn * plan.calls
            return range(first, first + plan.calls)

        def prepare(turn: int) -> None:
            with self._own_threads():
                self.ring.prepare(turn, entries(turn))

        def before(turn: int) -> None:
            self.progress.touch()
            with self._own_threads():
                self.ring.change(turn, entries(turn))

        taking_us: list[float] = []

        def take_timed(call: int, output: Any) -> None:
            began = _now_ns()
            take(call, output)
            taking_us.append((_now_ns() - began) / 1e3)

        self.ring.draw(plan.seed, captured=message["mode"] == "device")
        hooks = Hooks(self.align, before, prepare, take_timed)
        allowed, core = os.sched_getaffinity(0), self.platform.core(self.rank, self.world_size)
        if core is not None:
            os.sched_setaffinity(0, {core})
        gc.disable()  # until the reply is on its way
        try:
            timer = self.platform.time_eager if message["mode"] == "eager" else self.platform.time_device
            return asdict(replace(timer(call, plan, hooks), taking_us=taking_us))
        except platforms.NotCapturableError as error:
            return {"not_capturable": str(error)}
        finally:
            os.sched_setaffinity(0, allowed)


def main(
    settings: dict[str, Any],
    rank: int,
    channel: Channel,
    listener: socket.socket,
    confine: Callable[[], None] = lambda: None,
) -> None:
    """Entry after the fork. Returns when the supervisor closes the channel. `confine` gives up what an untrusted role
    must not have."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.environ.clear()
    os.environ |= settings["environment"]
    faulthandler.enable()  # a segfault leaves its Python stack in the log
    stacks = (Path(settings["scratch"]) / f"stack.{rank}").open("a")
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    # Maps the progress words: a file that a candidate could open it could also cut off below our feet.
    state = Rank(settings, rank, listener)
    confine()
    handlers = _handlers(settings["role"], state)
    while True:
        try:
            message = channel.receive()
        except ChannelClosedError:
            return
        try:
            reply = handlers[message["op"]](message)
        except Exception as error:
            reply = {"error": describe_error(error)}
        # SystemExit, KeyboardInterrupt and GeneratorExit leave: the exit status then tells.
        try:
            channel.send({**reply, "nonce": message["nonce"]})
        except ChannelClosedError:
            return
        except Exception as error:  # a reply that is not JSON: a number with thousands of digits
            channel.send({"error": describe_error(error), "nonce": message["nonce"]})
        if not gc.isenabled():
            # What timed calls have left behind. Any sooner, and the clock outside would take it for calls that are
            # longer than claimed: 22 us for each call of one that asks torch.cuda.memory_stats() twice. Who is asked
            # for `rest` answers when it is done.
            gc.collect(0)
            gc.enable()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # a candidate may have put anything there, or closed it
                stream.flush()


def _handlers(role: str, state: Rank) -> dict[str, Handler]:
    if role == "reference":
        from harness.reference_rank import ReferenceRank

        return ReferenceRank(state).handlers
    if role == "candidate":
        from harness.candidate_rank import CandidateRank

        return CandidateRank(state).handlers
    if role == "build":
        from harness.builder import Builder

        return Builder(state).handlers
    raise HarnessError(f"no role {role!r}")


def _text(error: BaseException) -> str:
    try:
        return str(error)[:_MOST_TEXT]
    except BaseException as broken:  # the candidate's own __str__
        return f"(its text cannot be had: {type(broken).__name__})"


def _suggestion(error: BaseException) -> str:
    """`. Did you mean: 'empty'?`, which Python appends where it prints an error itself; "" if no name is like it."""
    try:
        if isinstance(error, AttributeError):
            wrong, there = error.name, dir(error.obj)
        elif isinstance(error, NameError):
            frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
            wrong, there = error.name, [*frames[-1].f_locals, *frames[-1].f_globals, *dir(builtins)]
        elif isinstance(error, ImportError) and (match := re.match(r"cannot import name '(\w+)'", str(error))):
            wrong, there = match[1], dir(sys.modules[str(error.name)])
        else:
            return ""
        close = difflib.get_close_matches(wrong or "", there, n=1, cutoff=0.7)
        return f". Did you mean: '{close[0]}'?" if close else ""
    except BaseException:  # the candidate's own objects: they may not even have names
        return ""


def describe_error(error: BaseException) -> dict[str, Any]:
    """An exception as data: type, message, the candidate's line, and the stack from the candidate's code on."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [i for i, frame in enumerate(frames) if Path(frame.filename).name == "candidate.py"]
    shown = frames[own[0] :] if own else frames
    line = frames[own[-1]].lineno if own else None
    if isinstance(error, SyntaxError) and Path(error.filename or "").name == "candidate.py":
        line = error.lineno
    stack = "".join(
        one_line(f"{Path(f.filename).name}:{f.lineno} in {f.name}: {f.line or ''}", 300) + "\n"
        for f in shown
        if f.name != "_call_with_frames_removed"
    )
    return {
        "type": type(error).__name__,
        "bases": [base.__name__ for base in type(error).__mro__],
        "message": _text(error) + _suggestion(error),
        "line": line,
        "stack": stack[-_MOST_STACK:],  # of a recursion it could be longer than a message may be
    }
