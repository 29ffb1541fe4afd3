"""The place of one agent: a run that begins with its first use, whose calls are made in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from typing import TypeVar

from agent.external import Answer, External
from agent.person import interrupted_if
from harness.errors import RingsmithError
from problems.spec import ProblemError
from runs.fold import Run

_T = TypeVar("_T")

Opener = Callable[[str], AbstractContextManager[External]]
"""Opens the run for the agent of this name, as `service.run.open_external` does."""

FULL = "{most} runs are going on here and no more are allowed at once. Try again later."
UNHEARD = "What {name} returned, for which you stopped waiting before:"


class NotOpenError(Exception):
    """The run could not be opened; the text says why. The next use tries again."""


class StoppedError(Exception):
    """The server was told to stop, which broke the call off."""


class Seat:
    """All methods but `interrupt` are for one event loop. What blocks is done in one thread, in the order of the calls,
    and goes on when the task that waits for it is cancelled."""

    def __init__(self, open_run: Opener, places: threading.BoundedSemaphore | None = None, most: int = 1) -> None:
        """`places` is shared by seats of which at most `most` may have a run that goes on."""
        self._open_run = open_run
        self._places, self._most = places, most
        self._thread = ThreadPoolExecutor(1, "run")
        self._stop = threading.Event()
        self._opening: Future[External] | None = None
        self._resources = ExitStack()
        self._unheard: list[str] = []
        self.used_at = time.monotonic()
        """When it was last used."""
        self.busy = 0
        """Uses under way."""
        self.failure: Exception | None = None
        """Why the run could not be opened."""

    @property
    def run(self) -> Run | None:
        """The run once it has ended."""
        agent = self._agent
        return agent.ended if agent else None

    async def task(self, agent: str) -> str:
        """The task, and what came of it so far. Raises NotOpenError, StoppedError."""

        def tell(run: External) -> str:
            return "\n\n".join([*(message.text for message in run.messages), run.so_far()])

        return await self._use(agent, tell)

    async def call(self, agent: str, name: str, arguments: dict[str, object]) -> Answer:
        """Make a tool call. One that nobody waits for any more is made all the same if it has begun, and the next
        answer tells what it returned. Raises NotOpenError, StoppedError."""

        def make(run: External) -> Answer:
            answer = run.call(name, arguments)
            if answer.ended:
                self._resources.close()
            return answer

        answer = await self._use(agent, make, unheard=lambda answer: self.keep(name, answer))
        unheard, self._unheard = self._unheard, []
        return Answer("\n\n".join([*unheard, answer.text]), answer.ok, answer.ended)

    def keep(self, name: str, answer: Answer) -> None:
        """It did not reach the agent: tell it with the next one."""
        self._unheard.append(f"{UNHEARD.format(name=name)}\n{answer.text}")

    def interrupt(self) -> None:
        """Break off what is being done, as Ctrl-C does: the run ends without a grade and can be resumed."""
        self._stop.set()

    async def leave(self) -> Run | None:
        """The agent has left: end the run if it has not ended, with the official evaluation of its best candidate.
        A call that is being made is waited for. Gives the run, if there was one. The last thing to be called."""
        if self._opening is not None:
            await asyncio.gather(asyncio.wrap_future(self._opening), return_exceptions=True)
        if agent := self._agent:
            # Not in the seat's thread, which may be held in a call by a person's pause: `close` ends that.
            await asyncio.to_thread(self._end, agent)
            await asyncio.wrap_future(self._thread.submit(self._resources.close))
        self._thread.shutdown(wait=False)
        return self.run

    @property
    def _agent(self) -> External | None:
        opening = self._opening
        if opening is None or not opening.done() or opening.exception() is not None:
            return None
        return opening.result()

    async def _use(self, agent: str, what: Callable[[External], _T], unheard: Callable[[_T], None] | None = None) -> _T:
        """Raises what `what` raises."""
        self.busy += 1
        try:
            if self._opening is None:
                self._opening = self._thread.submit(self._guarded, lambda: self._open(agent))
            opening = self._opening
            done: Future[_T] = self._thread.submit(lambda: self._guarded(lambda: what(opening.result())))
            try:
                return await asyncio.wrap_future(done)
            except asyncio.CancelledError:
                if unheard is not None and not done.cancelled():
                    keep = unheard
                    done.add_done_callback(lambda f: f.cancelled() or f.exception() or keep(f.result()))
                raise
            except NotOpenError:
                if self._opening is opening:
                    self._opening = None
                raise
        finally:
            self.busy -= 1
            self.used_at = time.monotonic()

    def _end(self, agent: External) -> None:
        if self._stop.is_set():
            agent.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
        else:
            self._guarded(agent.close)

    def _guarded(self, what: Callable[[], _T]) -> _T:
        """A KeyboardInterrupt that left a thread would end the event loop that waits for it."""
        try:
            with interrupted_if(self._stop.is_set):
                return what()
        except KeyboardInterrupt:
            raise StoppedError("Ringsmith was told to stop. The run can be resumed.") from None

    def _open(self, agent: str) -> External:
        if self._places is not None:
            if not self._places.acquire(blocking=False):
                raise NotOpenError(FULL.format(most=self._most))
            self._resources.callback(self._places.release)
        try:
            run = self._resources.enter_context(self._open_run(agent))
        except Exception as error:
            self._resources.close()
            self.failure = error
            ours = "" if isinstance(error, RingsmithError | ProblemError) else f"internal: {type(error).__name__}: "
            raise NotOpenError(f"The run could not be opened: {ours}{error}") from error
        except BaseException:
            self._resources.close()
            raise
        self.failure = None
        return run
