"""A real server in a process of its own, that can be killed and started again at the same port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """Its clients skip certificates, which there are none of here: to load them takes longer than most answers."""

    def __init__(
        self,
        runs: Path,
        *flags: str,
        environment: dict[str, str] | None = None,
        module: str = "service.cli",
        pages: bool = False,
    ) -> None:
        """`module`: `tests.service.fake_server` evaluates nothing really. `pages` take two seconds more to start."""
        self.port, self.runs = free_port(), runs
        self.flags = flags if pages else (*flags, "--no-pages")
        self.url = f"http://127.0.0.1:{self.port}"
        self.api = f"{self.url}/api/v1"
        self.log, self._module = runs.parent / f"{runs.name}.log", module
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, wait_s: float = 60.0) -> Server:
        command = [sys.executable, "-m", self._module, "serve", "--port", str(self.port), "--root", str(self.runs)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *self.flags], stdout=log, stderr=log, cwd=ROOT, env=self._environment
            )
        until = time.monotonic() + wait_s
        while time.monotonic() < until and self.process.poll() is None:
            try:
                httpx.get(f"{self.url}/healthz", timeout=5.0, verify=False)
                return self
            except httpx.TransportError:
                time.sleep(0.05)
        raise AssertionError(f"the server did not come up: {self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        """As kill -9 does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, wait_s: float = 60.0) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(wait_s)
        finally:
            self.process.kill()

    @property
    def rss_bytes(self) -> int:
        assert self.process is not None
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def get(self, path: str, **more: Any) -> httpx.Response:
        return httpx.get(f"{self.api}{path}", timeout=60.0, verify=False, **more)

    def post(self, path: str, json: Any = None, **more: Any) -> httpx.Response:
        return httpx.post(f"{self.api}{path}", json={} if json is None else json, timeout=60.0, verify=False, **more)
