"""A rank's life after the fork: environment, device, process group, then requests until the channel closes.

Roles: `reference` (trusted, long-lived), `candidate` (untrusted, used once), `build` (one process, no device).
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.profiler  # imported before the fork: profiling must not pay for it
from torch._C._distributed_c10d import TCPStore

from harness import platforms
from harness.errors import HarnessError
from harness.exchange import Exchange
from harness.platforms import Platform
from harness.progress import Progress, ProgressBoard
from harness.wire import Channel, ChannelClosedError

Handler = Callable[[dict[str, Any]], dict[str, Any]]


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

    def connect(self, message: dict[str, Any]) -> dict[str, Any]:
        """Context, process group, first rendezvous."""
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
        self.device = self.platform.start(self.rank, self.world_size, store)
        self._memory = self.platform.symmetric(4096, sequence=0)
        self.align = self._memory.barrier
        self.align()
        self.platform.synchronize()
        return {}

    def attach(self, message: dict[str, Any]) -> dict[str, Any]:
        """Use the exchange files in `folder` from now on."""
        for name in ("inputs", "outputs"):
            self.exchange[name] = Exchange(Path(message["folder"]) / f"{name}.{self.rank}")
        return {}

    def time(self, call: Callable[[int], Any], message: dict[str, Any]) -> dict[str, Any]:
        """One block of timed calls; `call(i)` makes the i-th. Reply: `times_us`, or `not_capturable`."""
        tick = self.progress.touch
        mode, iterations = message["mode"], message["iterations"]
        if mode == "steady":
            return {"times_us": self.platform.time_steady(call, iterations, tick)}
        timer = self.platform.time_eager if mode == "eager" else self.platform.time_device
        try:
            return {"times_us": timer(call, iterations, self.align, tick)}
        except platforms.NotCapturableError as error:
            return {"not_capturable": str(error)}


def main(settings: dict[str, Any], rank: int, channel: Channel, listener: socket.socket) -> None:
    """Entry after the fork. Returns when the supervisor closes the channel."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.clear()
    os.environ |= settings["environment"] | {"HOME": settings["scratch"], "TMPDIR": settings["scratch"]}
    os.environ["RINGSMITH_SYMMETRIC"] = settings["scratch"]
    faulthandler.enable()  # a segfault leaves its Python stack in the log
    stacks = (Path(settings["scratch"]) / f"stack.{rank}").open("w")
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    state = Rank(settings, rank, listener)
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
        sys.stdout.flush()
        sys.stderr.flush()


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
        return str(error)[:20000]
    except BaseException as broken:  # the candidate's own __str__
        return f"(its text cannot be had: {type(broken).__name__})"


def describe_error(error: BaseException) -> dict[str, Any]:
    """An exception as data: type, message, the candidate's line, and the stack from the candidate's code on."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [i for i, frame in enumerate(frames) if Path(frame.filename).name == "candidate.py"]
    shown = frames[own[0] :] if own else frames
    line = frames[own[-1]].lineno if own else None
    if isinstance(error, SyntaxError) and Path(error.filename or "").name == "candidate.py":
        line = error.lineno
    stack = "".join(
        f"{Path(f.filename).name}:{f.lineno} in {f.name}: {f.line or ''}\n"
        for f in shown
        if f.name != "_call_with_frames_removed"
    )
    return {
        "type": type(error).__name__,
        "bases": [base.__name__ for base in type(error).__mro__],
        "message": _text(error),
        "line": line,
        "stack": stack,
    }
