"""A process with torch loaded that forks ranks in milliseconds (`python -m harness.forkserver FD SCRATCH`).

Importing torch costs 1-6 s; a fork of this process 15 ms. It must never create a CUDA context: a forked child could
not use it. It is the subreaper of everything that candidates start, so that killing a set leaves nothing behind, and
it kills all and exits when the supervisor's end of the control socket closes, however the supervisor died.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from harness import jail_process, proc, removal
from harness.control_group import ControlGroup
from harness.wire import Channel, ChannelClosedError, readable

_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)
_MAX_FDS = 250  # of one message, as Linux has it
_SPAWN_S = 30.0
"""Longest wait for a sign of life while a set is being made."""
_exit = os._exit  # a candidate may replace the module's


class ForkServer:
    def __init__(self, control: Channel) -> None:
        self._control = control
        self._pids: dict[str, dict[int, int]] = {}
        """set -> pid -> rank, running or not yet asked about."""
        self._exits: dict[str, dict[int, int]] = {}
        """set -> rank -> wait status."""
        self._holders: dict[str, jail_process.Holder] = {}
        """set -> its jail."""
        self._groups: dict[str, ControlGroup] = {}
        """set -> its control group."""

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
        from problems.spec import Case, ProblemError

        try:
            problem = catalogue.load(message["problem"], message["suite"])
        except ProblemError as error:  # a suite's file that cannot be imported here
            return {"illegal": str(error), "work": None}
        case, world_size = Case(message["case"], message["sizes"]), message["world_size"]
        reason = problem.illegal(case, world_size)
        element_bytes = getattr(torch, message["dtype"]).itemsize
        work = None if reason else asdict(problem.work(case, world_size, element_bytes))
        return {"illegal": reason, "work": work}

    def _spawn(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Fork `world_size` processes; process i gets `fds[i]` as its channel and all get the rest: locks of a lease,
        which a rank keeps until it has connected. With `jail`, they are inside one before they answer anything.

        Reply: `pids`, or `error` if the jail could not be had; nothing of the set is left then."""
        name, jail, world_size = message["set"], message["jail"], message["world_size"]
        self._pids[name], self._exits[name] = {}, {}
        report = Report()
        try:
            if jail and jail["group"]:
                self._groups[name] = ControlGroup(Path(jail["group"]))
                self._groups[name].make()
            if jail and jail["holder"]:
                pids = self._fork_inside(message, fds, report)
            else:
                with _listener() as listener:
                    pids = self._fork_ranks(message, fds, listener, report)
                report.done_writing()
            self._pids[name] = {pid: rank for rank, pid in enumerate(pids)}
            if jail and not report.read_marks(world_size):
                raise jail_process.JailError(f"a rank could not be confined: {_said(Path(message['scratch']))}")
            return {"pids": pids}
        except (jail_process.JailError, OSError) as error:
            self._kill({"set": name}, [])
            return {"error": str(error)}
        finally:
            report.close()
            for fd in fds:
                os.close(fd)

    def _fork_inside(self, message: dict[str, Any], fds: list[int], report: Report) -> list[int]:
        """Make a jail, and the ranks in it: a process of one thread enters it, forks them and leaves. They are then
        children of this one, the nearest subreaper that is not in the jail; numbers are those outside."""
        holder = self._holders[message["set"]] = jail_process.Holder(message["jail"]["holder"])
        server, pid = os.getpid(), os.fork()
        if pid == 0:
            try:
                jail_process.die_with_parent(server)
                jail_process.close_all_but({*fds, *holder.descriptors, report.write_end})
                init = holder.ready()
                self._join_group(message["set"])
                jail_process.join(init, message["jail"]["namespaces"])
                if "net" in message["jail"]["namespaces"]:
                    jail_process.loopback_up()
                with _listener() as listener:
                    report.write({"init": init, "pids": self._fork_ranks(message, fds, listener, report)})
            except BaseException as error:
                report.write({"error": str(error) or type(error).__name__})
            finally:
                _exit(0)
        report.done_writing()
        told = report.read()
        if not told:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        holder.init = told.get("init")
        if "pids" not in told:
            raise jail_process.JailError(told.get("error", "the process that enters the jail ended"))
        return list(told["pids"])

    def _join_group(self, name: str) -> None:
        """With this process, which is not the server's own, before it forks or becomes a rank of the set."""
        if name in self._groups:
            self._groups[name].add(os.getpid())

    def _fork_ranks(
        self, message: dict[str, Any], fds: list[int], listener: socket.socket, report: Report
    ) -> list[int]:
        world_size, parent = message["world_size"], os.getpid()
        locks, pids = fds[world_size:], []
        for rank in range(world_size):
            pid = os.fork()
            if pid == 0:
                self._child(message | {"locks": locks}, rank, fds[rank], listener, report, parent)
            pids.append(pid)
        return pids

    def _child(
        self, message: dict[str, Any], rank: int, fd: int, listener: socket.socket, report: Report, parent: int
    ) -> None:
        status, jail = 1, message["jail"]
        # Not this process's to kill, should anything unwind into the server's own code.
        self._pids, self._exits = {}, {}
        try:
            jailed = bool(jail and jail["holder"])
            if not jailed:  # the kernel kills what is in a jail
                jail_process.die_with_parent(parent)
                self._join_group(message["set"])
            jail_process.close_all_but({fd, listener.fileno(), report.write_end, *message["locks"]})
            log = os.open(Path(message["scratch"]) / f"log.{rank}", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            from harness import rank as rank_process

            def confine() -> None:
                """From here on nothing can be undone; the server waits until all ranks have come so far."""
                if jail:
                    jail_process.drop(jail["drops"])
                    if not jailed:
                        jail_process.die_with_parent(parent)
                    report.mark()
                report.done_writing()

            rank_process.main(message, rank, Channel(socket.socket(fileno=fd)), listener, confine)
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
        """Wait statuses of the ranks of a set that have ended, and whether its jail has: no candidate can do that. A
        channel closes a moment before its process can be waited for, so a rank named in `closed` is given 2 s."""
        name, deadline = message["set"], time.monotonic() + 2.0
        while True:
            for pid, rank in list(self._pids[name].items()):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    del self._pids[name][pid]
                    self._exits[name][rank] = status
            if all(r in self._exits[name] for r in message["closed"]) or time.monotonic() > deadline:
                holder = self._holders.get(name)
                return {
                    "exits": {str(rank): status for rank, status in self._exits[name].items()},
                    "jail_ended": holder is not None and holder.ended(),
                }
            time.sleep(0.005)

    def _kill(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """SIGKILL a set and whatever it started, wait until all are gone. `left` counts what would not die in 20 s."""
        pids = self._pids.pop(message["set"], {})
        self._exits.pop(message["set"], None)
        holder = self._holders.pop(message["set"], None)
        group = self._groups.pop(message["set"], None)
        if holder is not None:
            holder.kill()
        if group is not None:
            group.kill()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        known = {pid for others in self._pids.values() for pid in others}
        known |= {pid for other in self._holders.values() for pid in (other.process.pid, other.init or 0)}
        deadline = time.monotonic() + 20.0
        while True:
            # Orphans of the set have been handed to this process, their subreaper; they in turn may have children.
            doomed = [pid for pid in proc.children(os.getpid()) if pid not in known]
            for pid in doomed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            if not doomed or time.monotonic() > deadline:
                if holder is not None:
                    holder.close()
                if group is not None:
                    group.remove()
                return {"left": len(doomed)}
            time.sleep(0.005)


class Report:
    """A pipe on which a set that is being made tells the server how far it is: at most one message, then a mark a rank.
    Closed early, it tells that somebody did not get there."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        self._data = b""

    def write(self, message: dict[str, Any]) -> None:
        os.write(self.write_end, json.dumps(message).encode() + b"\n")

    def mark(self) -> None:
        os.write(self.write_end, b".")

    def done_writing(self) -> None:
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def read(self) -> dict[str, Any]:
        """The message; empty if none came."""
        # Marks may come before it: ranks are there before their numbers are told.
        while b"\n" not in self._data and self._more():
            pass
        start, end = self._data.find(b"{"), self._data.find(b"\n")
        if end < 0:
            return {}
        message, self._data = self._data[start:end], self._data[:start] + self._data[end + 1 :]
        return dict(json.loads(message))

    def read_marks(self, count: int) -> bool:
        """Whether `count` marks came."""
        while len(self._data) < count and self._more():
            pass
        return len(self._data) >= count

    def _more(self) -> bool:
        data = os.read(self._read_end, 65536) if readable([self._read_end], _SPAWN_S) else b""
        self._data += data
        return bool(data)

    def close(self) -> None:
        self.done_writing()
        os.close(self._read_end)


def _listener() -> socket.socket:
    """The store's socket, bound before the fork: no rank can lose a race for the port."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    return listener


def _said(scratch: Path) -> str:
    """The last line of what ranks printed that came to nothing."""
    texts = [path.read_text(errors="replace").strip() for path in sorted(scratch.glob("log.*"))]
    return next((text.splitlines()[-1][:500] for text in texts if text), "it said nothing")


def _spoiled() -> bool:
    """Whether a fork of this process cannot use CUDA, which only a fork can tell."""
    import torch

    pid = os.fork()
    if pid == 0:
        _exit(torch.cuda._is_in_bad_fork())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0


def main() -> None:
    control = Channel(socket.socket(fileno=int(sys.argv[1])))
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to handle
    import torch
    import torch.distributed

    # Everything that a rank needs, before the first fork. torch's extension builder asks at its import whether there
    # are GPUs, and no way to find out leaves the forks as they were: asking the runtime starts it, and where NVML had
    # been asked NCCL did not come up in them.
    asks, torch.cuda.is_available = torch.cuda.is_available, lambda: False
    import harness.builder
    import harness.candidate_rank
    import harness.reference_rank  # noqa: F401
    import problems.parsing  # noqa: F401  a jailed rank sees nothing of this folder

    torch.cuda.is_available = asks
    if torch.version.cuda:
        # torch imports it, and sympy with it, where it first checks a size: 2 to 4 s in every rank that allocates
        # symmetric memory, which was most of what bringing ranks up took.
        import torch.fx.experimental.symbolic_shapes

        if _spoiled():
            raise RuntimeError("the fork server has used CUDA: no fork of it can")
    ForkServer(control).serve()
    removal.remove(Path(sys.argv[2]))  # the supervisor may be gone


if __name__ == "__main__":
    main()
