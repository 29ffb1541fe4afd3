"""One run for the client that started this process and talks over its stdin and stdout."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from typing import Any, Self, cast

import anyio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from runs.fold import Run
from service.mcp.seat import Seat

_CHUNK = 1 << 16


def serve(server: Server[Any], seat: Seat) -> Run | None:
    """Until the client leaves (its end of stdin is closed, or a signal), then end the run, if one was begun. At a
    terminal a signal is a person's Ctrl-C: the run ends as interrupted, without its grade."""
    return asyncio.run(_serve(server, seat))


async def _serve(server: Server[Any], seat: Seat) -> Run | None:
    at_terminal = os.isatty(0)
    wire = _Wire()
    try:
        with anyio.CancelScope() as serving:

            def leave() -> None:
                if at_terminal:
                    seat.interrupt()
                serving.cancel()

            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(number, leave)
            async with stdio_server(cast(Any, wire), wire.output) as (read, write):
                await server.run(read, write, server.create_initialization_options())
    except* BrokenPipeError:
        pass  # the client has left and did not wait for an answer
    finally:
        wire.close()
        run = await seat.leave()
    return run


class _Wire:
    """The client's side of stdin and stdout. Whatever else reads or writes there, child processes too, gets nothing
    and stderr. The SDK does the same, but reads in a thread that no signal can end, and keeps the pipes open."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self._input = os.dup(0)
        self.output = anyio.wrap_file(os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n"))
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    def close(self) -> None:
        """Tell a client that waits for our last word that there is none. What it has not read is lost."""
        with contextlib.suppress(OSError):
            self.output.wrapped.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        line = await self._lines.get()
        if line is None:
            raise StopAsyncIteration
        return line

    def _read(self) -> None:
        # No file object: its lock, held by this thread at exit, would abort the interpreter.
        begun = b""
        with contextlib.suppress(OSError):
            while chunk := os.read(self._input, _CHUNK):
                *whole, begun = (begun + chunk).split(b"\n")
                for line in whole:
                    self._put(line.decode(errors="replace"))
        self._put(None)

    def _put(self, line: str | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
