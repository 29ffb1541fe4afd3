"""The process of a session, as the server that started it sees it. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence

from harness.remote.messages import SessionSettings
from harness.sandboxes import TOKEN_VARIABLE
from harness.types import to_json
from harness.wire import pair

_END_S = 10.0
"""For it to end its ranks when it is asked to."""


class Worker:
    """`worker.py` in a process group of its own: a Ctrl-C at the server's terminal is the server's to act on."""

    def __init__(self, settings: SessionSettings, devices: Sequence[int] | None) -> None:
        """`devices` as a Sandbox takes them."""
        self.channel, theirs = pair()
        environment = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "harness.remote.worker", str(theirs.fileno())],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
                env=environment, start_new_session=True,
            )  # fmt: skip
        self.channel.send({"settings": to_json(settings), "devices": devices})

    def kill(self) -> None:
        """Its ranks end as soon as it has: they notice."""
        self._process.kill()

    def ended(self) -> str:
        return f"exit {self._process.wait()}"

    def end(self) -> None:
        """Ask it to end its ranks and itself; kill it if it does not."""
        with contextlib.suppress(OSError):
            self.channel.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
