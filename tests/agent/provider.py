"""A local HTTP server that speaks a provider's wire format, for adapters that use the provider's real SDK."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from runs.messages import Message

KEY = "sk-test-0123456789abcdef"
TOOLS = [
    {"name": "compile", "description": "Build.", "parameters": {"type": "object", "properties": {}}},
    {"name": "read", "description": "Read.", "parameters": {"type": "object", "properties": {"page": {}}}},
]
HELLO = (Message(role="system", text="be good"), Message(role="user", text="hello"))


@dataclass
class Answer:
    status: int = 200
    body: Any = None
    """A dict is sent as JSON, bytes as they are."""
    headers: dict[str, str] = field(default_factory=dict)
    events: Sequence[dict[str, Any] | bytes] | None = None
    """Instead of a body: server-sent events, named by their `type`; bytes as they are."""
    cut: bool = False
    """The connection breaks after the events, within a chunk."""
    silent: bool = False
    """Nothing is answered until the test is over."""
    stalls: bool = False
    """The same after the events."""


class Server(ThreadingHTTPServer):
    """Gives its answers in order and keeps what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[Answer] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.over = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def url(self) -> str:
        return f"{self.address}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.close_connection = True
        self.server.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
        answer = self.server.answers.pop(0)
        if answer.silent:
            self.server.over.wait()
        elif answer.events is None:
            body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            self.begin(answer, {"Content-Type": "application/json", "Content-Length": str(len(body))})
            self.wfile.write(body)
        else:
            self.begin(answer, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
            for event in answer.events:
                line = event if isinstance(event, bytes) else f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
                data = line if isinstance(line, bytes) else line.encode()
                self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
            if answer.stalls:
                self.wfile.flush()
                self.server.over.wait()
            self.wfile.write(b"fff\r\nhalf a ch" if answer.cut else b"0\r\n\r\n")

    def begin(self, answer: Answer, headers: dict[str, str]) -> None:
        self.send_response(answer.status)
        for name, value in {**headers, "Connection": "close", **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class Time:
    """Passes only in `sleep`, which returns at once."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
