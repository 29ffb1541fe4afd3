"""What one call may use and what it has used: device-seconds, and time that is waiting and not work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from harness.errors import BudgetEndedError


class Allowance:
    """Of one tool call, evaluation or model request. Looked at wherever somebody waits for it. Made for one call, used
    by one thread; its figures may be read by others."""

    def __init__(self, over: Callable[[], str | None] | None = None) -> None:
        """`over` names the limit that is used up by now, if there is one; None: nothing bounds the call."""
        self._over = over
        self.ended: str | None = None
        """The limit that has ended the call."""
        self._device_s = self._waited_s = 0.0
        self._holding: tuple[float, int] | None = None
        """Since when how many devices are held."""
        self._waiting: float | None = None

    @property
    def bounded(self) -> bool:
        return self._over is not None

    @property
    def device_s(self) -> float:
        """Seconds x devices under lease, until now."""
        holding = self._holding
        return self._device_s + ((time.monotonic() - holding[0]) * holding[1] if holding else 0.0)

    @property
    def waited_s(self) -> float:
        """Seconds, until now, of waiting for what others have: a lease, a provider's rate limit. No working time."""
        waiting = self._waiting
        return self._waited_s + (time.monotonic() - waiting if waiting is not None else 0.0)

    def over(self) -> str | None:
        """The limit that is used up; it ends the call."""
        if self.ended is None and self._over is not None:
            self.ended = self._over()
        return self.ended

    def check(self) -> None:
        """Raises BudgetEndedError when a limit is reached, and once only: the cleaning up that follows is not cut
        short."""
        if self.ended is None and (limit := self.over()) is not None:
            raise BudgetEndedError(limit)

    def charge(self, device_s: float) -> None:
        """For devices that were held otherwise than in `holding`."""
        self._device_s += device_s

    @contextmanager
    def holding(self, devices: int) -> Iterator[None]:
        """The devices are this call's for the block."""
        self._holding = time.monotonic(), devices
        try:
            yield
        finally:
            self._device_s, self._holding = self.device_s, None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The block is no work."""
        self._waiting = time.monotonic()
        try:
            yield
        finally:
            self._waited_s, self._waiting = self.waited_s, None

    def add_wait(self, seconds: float) -> None:
        """What only turned out later to have been no work."""
        self._waited_s += seconds
