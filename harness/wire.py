"""JSON messages over a stream socket. Never pickle: the other end may be a candidate."""

from __future__ import annotations

import contextlib
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
MAX_UNTRUSTED_DEPTH = 100
"""Of what is nested in such a message: what can just be read could not be sent on with a level more."""
_SEND_S = 3.0
"""For an untrusted process to make room for a message: it may leave all that came before unread."""


class ChannelClosedError(Exception):
    """The other end is gone."""


class GarbledError(Exception):
    """The other end sent something that is not a message."""


class Channel:
    """One end of a socket pair. `receive` keeps partial data between calls, so a timeout loses nothing."""

    def __init__(self, sock: socket.socket, *, untrusted: bool = False) -> None:
        """`untrusted`: the other end may be a candidate, so it may say less, and has not for ever to read."""
        self._sock, self._untrusted = sock, untrusted
        self._max_bytes = MAX_UNTRUSTED_BYTES if untrusted else MAX_BYTES
        if untrusted:
            sock.settimeout(_SEND_S)  # of a whole `sendall`; nothing is received before `readable` has waited for it
        self._buffer = bytearray()
        self._fds: list[int] = []

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    def send(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        """Raises ChannelClosedError, also if an untrusted process does not read."""
        body = json.dumps(message).encode()
        frame = _LENGTH.pack(len(body)) + body
        try:
            if fds:
                sent = socket.send_fds(self._sock, [frame], list(fds))
                frame = frame[sent:]
            self._sock.sendall(frame)
        except OSError as error:
            with contextlib.suppress(OSError):  # half of it may be on its way: nothing can follow
                self._sock.shutdown(socket.SHUT_RDWR)
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
        # Most messages have so few brackets that there is nothing to look for.
        if self._untrusted and body.count(b"[") + body.count(b"{") > MAX_UNTRUSTED_DEPTH and _deep(message):
            raise GarbledError(f"nested more than {MAX_UNTRUSTED_DEPTH} deep")
        return message


def _deep(message: dict[str, Any]) -> bool:
    """Whether lists and objects in it are nested deeper than an untrusted process may nest them."""
    level: list[Any] = [message]
    for _ in range(MAX_UNTRUSTED_DEPTH):
        items = (item for value in level for item in (value.values() if isinstance(value, dict) else value))
        level = [item for item in items if isinstance(item, (dict, list))]
    return bool(level)


def readable(fds: Sequence[int], wait_s: float | None) -> list[int]:
    """Those descriptors that have data or have been closed, after waiting at most `wait_s` for the first."""
    poll = select.poll()  # unlike select(), not limited to descriptors below 1024
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(None if wait_s is None else wait_s * 1000)]


def pair(*, untrusted: bool = False) -> tuple[Channel, socket.socket]:
    """A channel for this process, and the raw socket for the other, which is `untrusted` or not."""
    ours, theirs = socket.socketpair()
    return Channel(ours, untrusted=untrusted), theirs
