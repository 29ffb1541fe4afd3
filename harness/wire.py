"""JSON messages over a stream socket. Never pickle: the other end may be a candidate."""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("<I")
MAX_BYTES = 64 << 20
MAX_UNTRUSTED_BYTES = 8 << 20
"""Of a message of an untrusted process: parsed it may take twenty times as much memory, and what of it goes on to
others four times as many bytes."""


class ChannelClosedError(Exception):
    """The other end is gone."""


class GarbledError(Exception):
    """The other end sent something that is not a message."""


class Channel:
    """One end of a socket pair. `receive` keeps partial data between calls, so a timeout loses nothing."""

    def __init__(self, sock: socket.socket, max_bytes: int = MAX_BYTES) -> None:
        """`max_bytes` is the longest message that is taken."""
        self._sock, self._max_bytes = sock, max_bytes
        self._buffer = bytearray()
        self._fds: list[int] = []

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    def send(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        """Raises ChannelClosedError."""
        body = json.dumps(message).encode()
        frame = _LENGTH.pack(len(body)) + body
        try:
            if fds:
                sent = socket.send_fds(self._sock, [frame], list(fds))
                frame = frame[sent:]
            self._sock.sendall(frame)
        except OSError as error:
            raise ChannelClosedError(str(error)) from None

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Raises TimeoutError, ChannelClosedError or GarbledError."""
        return self.receive_with_fds(0, timeout_s)[0]

    def receive_with_fds(self, max_fds: int, timeout_s: float | None = None) -> tuple[dict[str, Any], list[int]]:
        """As `receive`, with the file descriptors that came along (the sender attaches them to the first bytes)."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (message := self._parse()) is None:
            wait_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not readable([self._sock.fileno()], wait_s):
                raise TimeoutError
            try:
                if max_fds:
                    data, new, _, _ = socket.recv_fds(self._sock, 1 << 20, max_fds)
                    self._fds += new
                else:
                    data = self._sock.recv(1 << 20)
            except OSError as error:
                raise ChannelClosedError(str(error)) from None
            if not data:
                raise ChannelClosedError("end of stream")
            self._buffer += data
        fds, self._fds = self._fds, []
        return message, fds

    def _parse(self) -> dict[str, Any] | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > self._max_bytes:
            raise GarbledError(f"message of {length} bytes")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        try:
            message = json.loads(body)
            if b"\\ud" in body or b"\\uD" in body:  # half a surrogate pair is no text: no record could hold it
                message = json.loads(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace"))
        except (ValueError, RecursionError) as error:
            raise GarbledError(str(error)) from None
        if not isinstance(message, dict):
            raise GarbledError("not an object")
        return message


def readable(fds: Sequence[int], wait_s: float | None) -> list[int]:
    """Those descriptors that have data or have been closed, after waiting at most `wait_s` for the first."""
    poll = select.poll()  # unlike select(), not limited to descriptors below 1024
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(None if wait_s is None else wait_s * 1000)]


def pair(max_bytes: int = MAX_BYTES) -> tuple[Channel, socket.socket]:
    """A channel for this process, which takes messages of `max_bytes`, and the raw socket for the other."""
    ours, theirs = socket.socketpair()
    return Channel(ours, max_bytes), theirs
