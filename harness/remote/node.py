"""All sessions of a node, and what they share: its GPUs and the suites that were sent. Imports no torch."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

from harness.lease import free_devices
from harness.neighbours import gpu_sets
from harness.remote.messages import SessionSettings, Suite
from harness.remote.sessions import FullError, NotKnownError, Session
from harness.remote.suites import unpack


class Node:
    """Thread-safe."""

    def __init__(self, folder: Path, most_sessions: int, idle_s: float) -> None:
        """`most_sessions` with processes at once; those of one end `idle_s` after its client was last heard."""
        self._folder, self._most, self._idle_s = folder, most_sessions, idle_s
        self._sessions: dict[str, Session] = {}
        self._suites: dict[str, str] = {"": ""}
        self._lock = threading.Lock()
        self.jobs_begun = 0

    def begin(self, session_id: str, settings: SessionSettings) -> None:
        """A session of that id, unless it is there. Raises FullError."""
        with self._lock:
            if session_id not in self._sessions:
                if len(self._sessions) >= 16 * self._most:
                    raise FullError("too many sessions whose clients are gone; they are closed after an hour")
                self._sessions[session_id] = Session(settings, self._folder / session_id, self)

    def session(self, session_id: str) -> Session:
        """Raises NotKnownError."""
        with self._lock:
            if session_id not in self._sessions:
                raise NotKnownError("the node does not know this session (any more)")
            found = self._sessions[session_id]
        found.heard = time.monotonic()
        return found

    def end(self, session_id: str) -> None:
        """Never fails."""
        with self._lock:
            session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()

    def admit(self, session: Session) -> None:
        """Count a job. Raises FullError if it would need a process and there may be no more now."""
        if not session.has_processes and self.with_processes() >= self._most:
            raise FullError(f"{self._most} sessions are open on the node already (`--most-sessions`)")
        with self._lock:
            self.jobs_begun += 1

    def with_processes(self) -> int:
        return sum(session.has_processes for session in list(self._sessions.values()))

    def give_devices(self, session: Session) -> None:
        """The set of GPUs that the other sessions have least, preferably a free one; None on cpu, and where there are
        too few."""
        if session.settings.platform == "cpu":
            return
        sets = gpu_sets(session.settings.world_size)
        with self._lock:
            session.devices = None
            taken = Counter(device for other in self._sessions.values() for device in other.devices or ())
            session.devices = min(
                sets,
                key=lambda one: (sum(taken[device] for device in one), -len(free_devices("cuda", one))),
                default=None,
            )

    def keep_suite(self, suite: Suite) -> None:
        """Raises UsageError for a suite that is none."""
        self._suites[suite.digest] = str(unpack(suite, self._folder / "suites"))

    def suite(self, digest: str) -> str:
        """Where that one is. Raises NotKnownError if it was never sent."""
        if digest not in self._suites:
            raise NotKnownError("the node does not have these problem files")
        return self._suites[digest]

    def tidy(self) -> None:
        """To be called now and then."""
        for name, session in list(self._sessions.items()):
            if session.tidy(self._idle_s):
                self.end(name)

    def close(self) -> None:
        """End every session, all at once."""
        ending = [threading.Thread(target=self.end, args=(name,)) for name in list(self._sessions)]
        for thread in ending:
            thread.start()
        for thread in ending:
            thread.join()
