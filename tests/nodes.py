"""A node as a user has it, the server's own process; and a connection to it that can be cut."""

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.processes import descendants

ROOT = Path(__file__).resolve().parent.parent
RIGHT = "import torch.distributed as dist\ndef solution(x):\n    y = x.clone()\n    dist.all_reduce(y)\n    return y\n"
WRONG = "def solution(x):\n    return x.clone()\n"
PROBLEM = '''"""Twice the sum."""
import torch.distributed as dist
CASES = {"tiny": {"n": 64}}
def reference(x):
    y = x.clone()
    dist.all_reduce(y)
    return 2 * y
def inputs(case, ctx):
    return (ctx.randn(case["n"]),)
'''
HANG = "import time\ndef solution(x):\n    time.sleep(86400)\n"


@dataclass
class Node:
    process: subprocess.Popen
    url: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def processes(self) -> list[int]:
        """Everything that it has started."""
        return descendants(self.process.pid)


@contextlib.contextmanager
def node(*flags: object, port: int = 0, environment: dict[str, str] | None = None) -> Iterator[Node]:
    """`ringsmith sandbox serve`, ended by SIGTERM if it still runs."""
    command = [sys.executable, "-m", "service.cli", "sandbox", "serve", "--port", str(port), *map(str, flags)]
    given = {**os.environ, **(environment or {})}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=given) as process:
        try:
            said = process.stdout.readline()
            assert said.startswith("serving on "), said
            yield Node(process, said.removeprefix("serving on ").strip())
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(30)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(true: Callable[[], bool], limit_s: float = 60) -> None:
    """Wait; the limit is for tests that fail."""
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


class Proxy:
    """Between a client and a node. `cut` breaks every connection that there is; while `deaf` nothing that the node says
    comes through, and connections break instead."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self.deaf, self.cuts, self.connections = False, 0, 0
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        with self._lock:
            self.cuts += len(self._open)
            for one in self._open:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def close(self) -> None:
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._to)) as server:
            with self._lock:
                self._open += [client, server]
                self.connections += 1
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(1 << 16)
                    if not data or (ready is server and self.deaf):
                        return
                    (client if ready is server else server).sendall(data)
