"""A jail from the inside: its holder, and how a process joins it and gives up what it must not have.

For the fork server and, as a script, for the trial that tells which layers work here: standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

NOBODY = 65534
ROOT = ".root"
"""In a set's folder: mount point of the jail's root."""
HOSTNAME = "jail"
INFO_FD = "INFO_FD"
"""Stands in bubblewrap's arguments for the descriptor that it tells its process's number on."""
_READY_S = 20.0
_PROCESSES = 16384
_NAMESPACE_FLAGS = {
    "mount": 0x00020000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
_NAMESPACE_FILES = {"mount": "mnt", "pid": "pid_for_children"}
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_PF_EXITING = 0x4
_CAPABILITY_VERSION = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


class JailError(Exception):
    """A layer could not be had."""


class Holder:
    """The program that makes a jail, and ends in its pid 1: `cat` on a pipe that only this process holds, so that the
    jail ends with this process, however that ends."""

    def __init__(self, settings: dict[str, Any]) -> None:
        argv = list(settings["argv"])
        info = os.pipe() if settings["info"] else None
        if info is not None:
            argv = [str(info[1]) if word == INFO_FD else word for word in argv]
        try:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=settings["environment"],
                pass_fds=[info[1]] if info else [],
            )
        except OSError as error:
            raise JailError(f"{argv[0]}: {error.strerror}") from None
        finally:
            if info is not None:
                os.close(info[1])
        self._info = info[0] if info else None
        assert self.process.stdin is not None and self.process.stdout is not None
        self._out = self.process.stdout.fileno()
        self.descriptors = [self._out] if self._info is None else [self._out, self._info]
        """What `ready` reads; the pipe that keeps the jail alive is not among them."""
        self.init: int | None = None
        """Pid 1's number outside, once `ready` has told."""

    def ready(self) -> int:
        """Wait for the jail; returns the number of its pid 1 outside. Raises JailError."""
        if self.init is None:
            said = _read_until(self._out, re.compile(rb"^ready.*\n", re.M), _READY_S)
            line = re.search(r"^ready ?(\d*)$", said, re.M)
            if line is None:
                raise JailError(said.strip()[-500:] or "the jail's process ended and said nothing")
            if self._info is None:
                self.init = int(line[1])
            else:
                self.init = int(json.loads(_read_until(self._info, re.compile(rb"\}"), _READY_S))["child-pid"])
        return self.init

    def ended(self) -> bool:
        """Whether pid 1 is gone, or on its way: it waits for those it takes along to be waited for."""
        if self.init is None:
            return False
        try:
            fields = Path(f"/proc/{self.init}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return True
        return fields[0] in ("Z", "X") or bool(int(fields[6]) & _PF_EXITING)

    def kill(self) -> None:
        """SIGKILL pid 1 and with it whatever is inside. Somebody else waits for them."""
        for pid in (self.init, self.process.pid):
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Let go of the descriptors; the jail ends by itself if it has not been killed."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.returncode = self.process.returncode or 0  # waited for by number, not by Popen
        self.process.stdin.close()
        self.process.stdout.close()
        if self._info is not None:
            os.close(self._info)
            self._info = None


def _read_until(fd: int, pattern: re.Pattern[bytes], wait_s: float) -> str:
    """What comes from a descriptor until a pattern has, or the end, or the time is over."""
    data, deadline = b"", time.monotonic() + wait_s
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while not pattern.search(data):
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            break
        new = os.read(fd, 4096)
        if not new:
            break
        data += new
    return data.decode(errors="replace")


def join(init: int, namespaces: Sequence[str]) -> None:
    """Move this process into the namespaces of a jail's pid 1; its children will be in its pid namespace. Needs a
    process of one thread. Raises JailError."""
    try:
        pidfd = os.pidfd_open(init)
    except OSError as error:
        raise JailError(f"the jail's process: {error.strerror}") from None
    try:
        if "user" in namespaces:
            _check(_libc.setns(pidfd, _NAMESPACE_FLAGS["user"]), "joining the namespace of users")
            # Nor shall there be others in it: who makes one has all powers there, as to mount what is hidden.
            with contextlib.suppress(OSError):
                Path("/proc/sys/user/max_user_namespaces").write_text("0")
        flags = sum(_NAMESPACE_FLAGS[name] for name in namespaces if name != "user")
        if flags:
            _check(_libc.setns(pidfd, flags), f"joining the namespaces {' '.join(namespaces)}")
        if "uts" in namespaces:
            socket.sethostname(HOSTNAME)
    finally:
        os.close(pidfd)


def loopback_up() -> None:
    """Switch on `lo`: a new network namespace has it, switched off. Raises JailError."""
    get_flags, set_flags, up = 0x8913, 0x8914, 0x1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            request = struct.pack("16sh14x", b"lo", 0)
            flags = struct.unpack("16sh14x", fcntl.ioctl(sock, get_flags, request))[1]
            if not flags & up:
                fcntl.ioctl(sock, set_flags, struct.pack("16sh14x", b"lo", flags | up))
        except OSError as error:
            raise JailError(f"the loopback interface: {error.strerror}") from None


def close_all_but(keep: Collection[int]) -> None:
    """Close every other descriptor above 2: a folder or a pipe of the fork server would lead out of the jail."""
    for entry in os.listdir("/proc/self/fd"):
        if int(entry) > 2 and int(entry) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(entry))


def prefer_to_kill() -> None:
    """Where memory runs out, the kernel shall kill this process and its children first."""
    Path("/proc/self/oom_score_adj").write_text("1000")


def drop(what: Collection[str]) -> None:
    """Give up, for good, what a process that runs a candidate's code must not have, and see that it is gone. Raises
    JailError."""
    if unknown := set(what) - set(_DROPS):
        raise JailError(f"no such thing: {unknown}")
    for name, give_up in _DROPS.items():
        if name in what:
            try:
                give_up()
            except OSError as error:
                raise JailError(f"{name}: {error.strerror}") from None
    if "capabilities" in what and "uid" not in what:
        _no_capabilities()
    # A change of uid hides /proc/self from the process itself: CUDA and symmetric memory need theirs.
    _check(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "dumpable")
    _verify(what)


def _limits() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = _PROCESSES if hard == resource.RLIM_INFINITY else min(_PROCESSES, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    prefer_to_kill()


def _no_new_privileges() -> None:
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")


def _no_bounding_set() -> None:
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            if ctypes.get_errno() == 22:  # EINVAL: the kernel has no more
                break
            _check(-1, "capability bounding set")
    _check(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "ambient capabilities")


def _nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    _no_capabilities()


def _no_capabilities() -> None:
    header = struct.pack("<Ii", _CAPABILITY_VERSION, 0)
    _check(_libc.capset(header, bytes(24)), "capabilities")


_DROPS = {
    "limits": _limits,
    "no_new_privileges": _no_new_privileges,
    "capabilities": _no_bounding_set,  # those in force go with the uid, or afterwards
    "uid": _nobody,
}


def _verify(what: Collection[str]) -> None:
    text = Path("/proc/self/status").read_text()
    status = {name: value.split() for name, value in re.findall(r"^(\w+):[ \t]*(.*)$", text, re.M)}
    nobody = [str(NOBODY)] * 4
    if "uid" in what and (status["Uid"] != nobody or status["Gid"] != nobody or status["Groups"]):
        raise JailError(f"uid: still {status['Uid']} {status['Gid']} {status['Groups']}")
    if "no_new_privileges" in what and status["NoNewPrivs"] != ["1"]:
        raise JailError("no_new_privileges: not set")
    sets = [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")]
    if "capabilities" in what and any(int(value, 16) for (value,) in sets):
        raise JailError(f"capabilities: {sets} left")


def _check(result: int, what: str) -> None:
    if result != 0:
        raise JailError(f"{what}: {os.strerror(ctypes.get_errno())}")


def die_with_parent(parent: int) -> None:
    """SIGKILL when the parent ends. Does not outlast a change of uid."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


# -- the trial ---------------------------------------------------------------------------------------------------------


def _try(settings: dict[str, Any]) -> dict[str, str]:
    """What does not work -> why: `namespaces`, or one of the drops."""
    jail = settings["jail"]
    holder: Holder | None = None
    outside = {name: _namespace(name) for name in jail["namespaces"]}
    try:
        if jail["holder"] is not None:
            holder = Holder(jail["holder"])
            join(holder.ready(), jail["namespaces"])
            if "net" in jail["namespaces"]:
                loopback_up()
        failed: dict[str, str] = {}
        for name in jail["drops"]:
            if why := _in_child(lambda name=name: drop([name])):
                failed[name] = why
        if holder is not None:
            rest = [name for name in jail["drops"] if name not in failed]
            if why := _in_child(lambda: _look_around(jail["namespaces"], outside, rest, settings["readable"])):
                rest = [name for name in rest if name != "uid"]
                if _in_child(lambda: _look_around(jail["namespaces"], outside, rest, settings["readable"])):
                    return {"namespaces": why}
                failed["uid"] = why  # an interpreter that only its owner may read
        elif "uid" in jail["drops"] and "uid" not in failed:
            why = _in_child(lambda: _look_around([], {}, ["uid"], settings["readable"]))
            failed |= {"uid": why} if why else {}
        return failed
    except JailError as error:
        return {"namespaces": str(error)}
    finally:
        if holder is not None:
            holder.kill()
            holder.process.wait()


def _namespace(name: str) -> str:
    return os.readlink(f"/proc/self/ns/{_NAMESPACE_FILES.get(name, name)}")


def _look_around(
    namespaces: Sequence[str], outside: dict[str, str], drops: Sequence[str], readable: Sequence[str]
) -> None:
    drop(drops)
    for name in namespaces:
        if _namespace(name) == outside[name]:
            raise JailError(f"the namespace {name} is still the one outside")
    for path in readable:
        if not os.access(path, os.R_OK | os.X_OK):
            raise JailError(f"{path} cannot be read inside")
    if "mount" in namespaces and "pid" in namespaces and len(list(filter(str.isdigit, os.listdir("/proc")))) > 3:
        raise JailError("other processes can be seen")


def _in_child(body: Any) -> str:
    """Run `body` in a forked process (in the jail's pid namespace). Why it failed; empty if it did not."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except Exception as error:
            os.write(write_end, (str(error) or type(error).__name__).encode()[:1000])
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    _, status = os.waitpid(pid, 0)
    return said or ("" if status == 0 else "a process ended")


if __name__ == "__main__":
    print(json.dumps(_try(json.load(sys.stdin))))
