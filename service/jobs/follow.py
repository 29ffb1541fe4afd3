"""Events of runs for clients that follow them: one look at the file for all who follow the same run."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from service.jobs.tail import Tail

LOOK_S = 0.1
"""Between looks whether a file has grown."""
_IDLE_S = 2.0
"""Without news, how often it is asked whether anybody still writes the run."""


@dataclass
class _Watched:
    tail: Tail
    clients: int = 0
    seen: int = 0
    """Events that clients have been told of: others look at the same tail."""
    grown: asyncio.Event = field(default_factory=asyncio.Event)
    """Replaced by a new one each time it is set."""


class Follower:
    """Of one event loop. A client costs its place in the record and the lines that it is being sent, however slow it
    is: what it has not taken yet stays on the disk."""

    def __init__(self, leads: Callable[[str], bool]) -> None:
        """`leads`: whether a run, by its id, is led here or is about to be."""
        self._leads = leads
        self._watched: dict[Path, _Watched] = {}
        self._looking: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    @property
    def closing(self) -> bool:
        return self._closing.is_set()

    @property
    def clients(self) -> int:
        return sum(watched.clients for watched in self._watched.values())

    async def events(self, tail: Tail, after: int) -> AsyncIterator[list[tuple[int, bytes]]]:
        """Events behind number `after` with their numbers, some at a time, as they come: until the run has its end, or
        nobody leads it any more, or `close`."""
        watched, idle_since = self._enter(tail), time.monotonic()
        try:
            await asyncio.to_thread(watched.tail.catch_up)
            while not self._closing.is_set():
                grown = watched.grown
                while lines := watched.tail.lines(after):
                    yield [(after + number, line) for number, line in enumerate(lines, start=1)]
                    after += len(lines)
                    idle_since = time.monotonic()
                if await self._is_over(watched.tail, idle_since):
                    return
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(grown.wait(), _IDLE_S)
        finally:
            self._leave(watched)

    def close(self) -> None:
        """End every stream."""
        self._closing.set()
        for watched in self._watched.values():
            watched.grown.set()
        if self._looking is not None:
            self._looking.cancel()

    async def _is_over(self, tail: Tail, idle_since: float) -> bool:
        if self._leads(tail.path.name):
            return False
        if tail.end() is not None:
            # What was written a moment ago comes first.
            return not await asyncio.to_thread(tail.catch_up)
        return time.monotonic() - idle_since > _IDLE_S and not await asyncio.to_thread(tail.is_live)

    def _enter(self, tail: Tail) -> _Watched:
        watched = self._watched.setdefault(tail.path, _Watched(tail))
        watched.clients += 1
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return watched

    def _leave(self, watched: _Watched) -> None:
        watched.clients -= 1
        if not watched.clients:
            self._watched.pop(watched.tail.path, None)

    async def _look(self) -> None:
        while self._watched:
            all_watched = list(self._watched.values())
            await asyncio.to_thread(lambda: [watched.tail.catch_up() for watched in all_watched])  # noqa: B023
            for watched in all_watched:
                if watched.seen != len(watched.tail):
                    watched.seen = len(watched.tail)
                    watched.grown.set()
                    watched.grown = asyncio.Event()
            await asyncio.sleep(LOOK_S)
