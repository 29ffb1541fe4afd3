"""Two processes instead of one: the client's, which it may kill as soon as it leaves, and one of ours that then grades
the run."""

from __future__ import annotations

import ctypes
import os
import signal
from types import FrameType

_PR_SET_PDEATHSIG = 1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def split() -> int | None:
    """In the new process, which goes on with everything, None. In the one that the client knows, the exit code of the
    other, once that has ended.

    Clients end a server two seconds or less after they have closed its stdin, with all of its process group; an
    official evaluation takes longer. The new process is in a session of its own. A signal to the client's process, and
    its death, are a SIGTERM in the new one. Call it before any thread is started."""
    client, child = os.getpid(), 0

    def pass_on(number: int, frame: FrameType | None) -> None:
        os.kill(child, signal.SIGTERM)

    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    child = os.fork()
    if child == 0:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        if os.getppid() != client:  # died before it could be noticed
            raise KeyboardInterrupt
        return None
    for number in _SIGNALS:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    # Its copies would keep the pipes open for a client that waits until they are closed.
    nothing = os.open(os.devnull, os.O_RDWR)
    for pipe in (0, 1):
        os.dup2(nothing, pipe)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code
