"""A process with torch loaded that forks ranks in milliseconds (`python -m harness.forkserver FD SCRATCH`).

Importing torch costs 1-6 s; a fork of this process 15 ms. It must never create a CUDA context: a forked child could
not use it. It is the subreaper of everything that candidates start, so that killing a set leaves nothing behind, and
it kills all and exits when the supervisor's end of the control socket closes, however the supervisor died.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from harness.wire import Channel, ChannelClosedError

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)
_MAX_FDS = 250  # of one message, as Linux has it
_exit = os._exit  # a candidate may replace the module's


class ForkServer:
    def __init__(self, control: Channel) -> None:
        self._control = control
        self._pids: dict[str, dict[int, int]] = {}
        """set -> pid -> rank, running or not yet asked about."""
        self._exits: dict[str, dict[int, int]] = {}
        """set -> rank -> wait status."""

    def serve(self) -> None:
        try:
            while True:
                message, fds = self._control.receive_with_fds(_MAX_FDS)
                self._control.send(getattr(self, f"_{message['op']}")(message, fds))
        except ChannelClosedError:
            pass
        finally:
            for name in list(self._pids):
                self._kill({"set": name}, [])

    def _hello(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        import platform

        import torch

        return {"torch": torch.__version__, "cuda": torch.version.cuda or "", "python": platform.python_version()}

    def _inspect(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """What only a problem's own code can tell: whether it takes this world size, and its work."""
        from dataclasses import asdict

        import torch

        from problems import catalogue
        from problems.spec import Case

        problem = catalogue.load(message["problem"])
        case, world_size = Case(message["case"], message["sizes"]), message["world_size"]
        reason = problem.illegal(case, world_size)
        element_bytes = getattr(torch, message["dtype"]).itemsize
        work = None if reason else asdict(problem.work(case, world_size, element_bytes))
        return {"illegal": reason, "work": work}

    def _spawn(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Fork `world_size` processes; process i gets `fds[i]` as its channel and all get the rest: locks of a lease,
        which a rank keeps until it has connected."""
        # The store's socket is bound before the fork: no rank can lose a race for the port.
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        pids: dict[int, int] = {}
        world_size = message["world_size"]
        for rank in range(world_size):
            pid = os.fork()
            if pid == 0:
                self._child(message | {"locks": fds[world_size:]}, rank, fds[:world_size], listener)
            pids[pid] = rank
        listener.close()
        for fd in fds:
            os.close(fd)
        self._pids[message["set"]], self._exits[message["set"]] = pids, {}
        return {"pids": [pid for pid, _ in sorted(pids.items(), key=lambda item: item[1])]}

    def _child(self, message: dict[str, Any], rank: int, fds: list[int], listener: socket.socket) -> None:
        status = 1
        # Not this process's to kill, should anything unwind into the server's own code.
        self._pids, self._exits = {}, {}
        try:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            self._control.close()
            for other, fd in enumerate(fds):
                if other != rank:
                    os.close(fd)
            log = os.open(Path(message["scratch"]) / f"log.{rank}", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            from harness import rank as rank_process

            rank_process.main(message, rank, Channel(socket.socket(fileno=fds[rank])), listener)
            status = 0
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else 1
            if stop.code is not None and not isinstance(stop.code, int):
                print(stop.code, file=sys.stderr)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            # Never unwind into the server's own stack, and skip interpreter teardown: a context in an error state
            # or a spinning kernel would make destructors wait for ever.
            try:
                with contextlib.suppress(BaseException):
                    sys.stderr.flush()
            finally:
                _exit(status & 0xFF)

    def _exited(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Wait statuses of the ranks of a set that have ended. A channel closes a moment before its process can be
        waited for, so a rank named in `closed` is given 2 s."""
        name, deadline = message["set"], time.monotonic() + 2.0
        while True:
            for pid, rank in list(self._pids[name].items()):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    del self._pids[name][pid]
                    self._exits[name][rank] = status
            if all(r in self._exits[name] for r in message["closed"]) or time.monotonic() > deadline:
                return {"exits": {str(rank): status for rank, status in self._exits[name].items()}}
            time.sleep(0.005)

    def _kill(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """SIGKILL a set and whatever it started, wait until all are gone. `left` counts what would not die in 20 s."""
        pids = self._pids.pop(message["set"], {})
        self._exits.pop(message["set"], None)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        known = {pid for others in self._pids.values() for pid in others}
        deadline = time.monotonic() + 20.0
        while True:
            # Orphans of the set have been handed to this process, their subreaper; they in turn may have children.
            doomed = [pid for pid in _children() if pid not in known]
            for pid in doomed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            if not doomed or time.monotonic() > deadline:
                return {"left": len(doomed)}
            time.sleep(0.005)


def _children() -> list[int]:
    me, found = str(os.getpid()), []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The command in parentheses may hold anything; the parent is the second field after the last one.
                fields = Path(entry.path, "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[1] == me:
                    found.append(int(entry.name))
    return found


def main() -> None:
    control = Channel(socket.socket(fileno=int(sys.argv[1])))
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to handle
    import torch
    import torch.distributed

    import harness.rank  # noqa: F401  everything that a rank needs, before the first fork

    if torch.cuda.is_initialized():
        raise RuntimeError("the fork server must not hold a CUDA context")
    ForkServer(control).serve()
    shutil.rmtree(sys.argv[2], ignore_errors=True)  # the supervisor may be gone


if __name__ == "__main__":
    main()
