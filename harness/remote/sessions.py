"""The sessions of a node: a process each, its jobs one after another, their results kept until they are fetched."""

from __future__ import annotations

import queue
import shutil
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import HarnessError, UsageError
from harness.remote import work
from harness.remote.messages import JobState, Order, Reply, SessionSettings, Suite
from harness.remote.process import Worker
from harness.remote.suites import unpack
from harness.types import Stage, to_json
from harness.wire import ChannelClosedError, GarbledError

KEPT_S = 3600.0
"""For how long a result waits for its client."""
_MOST_JOBS = 64
"""Of one session, that are waiting, running or not fetched."""


class LostError(HarnessError):
    """No such session or job here (any more)."""


class FullError(HarnessError):
    """As many sessions as there may be."""


@dataclass
class _Kept:
    """A job and what is known of it."""

    order: Order
    stages: list[Stage] = field(default_factory=list)
    reply: Reply | None = None
    cancelled: bool = False
    done_at: float = 0.0


class Session:
    """Thread-safe. Its process is started by the first job and ended when nobody has asked for anything for a while;
    the next job starts another."""

    def __init__(self, settings: SessionSettings, folder: Path, node: Node) -> None:
        self.settings, self._folder, self._node = settings, folder, node
        self.heard = time.monotonic()
        self._jobs: dict[str, _Kept] = {}
        self._forgotten: set[str] = set()
        """Ids that were here: what arrives late does not begin again."""
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._running: str | None = None
        self._worker: Worker | None = None
        folder.mkdir()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    @property
    def has_processes(self) -> bool:
        return self._worker is not None

    def put(self, job_id: str, order: Order) -> JobState:
        """Begin a job; one whose id is known is not begun again. Raises LostError for one that was fetched, UsageError
        for another job under an id that is taken or for too many, FullError."""
        with self._lock:
            if job_id in self._forgotten:
                raise LostError("this job has been done and its result fetched")
            kept = self._jobs.get(job_id)
            if kept is None:
                if len(self._jobs) >= _MOST_JOBS:
                    raise UsageError(f"{_MOST_JOBS} jobs of this session are waiting or not fetched")
                self._node.suite(order.suite)
                self._node.admit(self)
                kept = self._jobs[job_id] = _Kept(order)
                self._waiting.put(job_id)
            elif kept.order != order:
                raise UsageError("the id belongs to another job")
            return _state(kept)

    def state(self, job_id: str) -> JobState:
        """Raises LostError."""
        with self._lock:
            if job_id not in self._jobs:
                raise LostError("no such job")
            return _state(self._jobs[job_id])

    def trace(self, job_id: str) -> Path:
        """Raises LostError."""
        with self._lock:
            kept = self._jobs.get(job_id)
            if kept is None or kept.reply is None or kept.reply.profile is None:
                raise LostError("no such trace")
            return self._folder / job_id / kept.reply.profile.trace

    def forget(self, job_id: str) -> None:
        """The client has the result, or wants none: a job that waits or runs is ended. Never fails."""
        with self._lock:
            kept = self._jobs.pop(job_id, None)
            self._forgotten.add(job_id)
            if kept is not None and kept.reply is None:
                kept.cancelled = True
                if self._running == job_id and self._worker is not None:
                    self._worker.kill()
        shutil.rmtree(self._folder / job_id, ignore_errors=True)

    def tidy(self, idle_s: float) -> bool:
        """What time has made superfluous. Returns whether the session itself is."""
        now = time.monotonic()
        with self._lock:
            old = [name for name, kept in self._jobs.items() if kept.reply and now - kept.done_at > KEPT_S]
            unheard = now - self.heard
            running, ids = self._running, list(self._jobs) if unheard > idle_s else []
            pending = [name for name in ids if self._jobs[name].reply is None]
        for name in (*old, *pending):
            self.forget(name)
        if unheard > idle_s and running is None and self.has_processes:
            self._waiting.put(None)
        return unheard > KEPT_S

    def close(self) -> None:
        """End all jobs and the process."""
        for name in list(self._jobs):
            self.forget(name)
        self._waiting.put(None)
        self._waiting.put("")
        self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- the session's own thread --------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (job_id := self._waiting.get()) != "":
            if job_id is None:
                with self._lock:
                    worker, self._worker = self._worker, None
                if worker is not None:
                    worker.end()
                continue
            with self._lock:
                kept = self._jobs.get(job_id)
                self._running = job_id if kept else None
            if kept is not None:
                reply = self._done(job_id, kept)
                with self._lock:
                    kept.done_at, kept.reply, self._running = time.monotonic(), reply, None

    def _done(self, job_id: str, kept: _Kept) -> Reply:
        """A process that dies is no candidate's doing: once more, with a fresh one."""
        said = ""
        for _ in range(2):
            try:
                worker = self._fresh_worker(kept)
                return work.answer_with_suite(self._asked(worker, job_id, kept), "")
            except (ChannelClosedError, GarbledError, OSError) as error:
                with self._lock:
                    if self._worker is not None:
                        self._worker.kill()
                        said, self._worker = f"{self._worker.ended()} {error}", None
                    kept.stages.clear()
                if kept.cancelled:
                    break
            except Exception as error:
                return work.fault("harness", f"internal: {type(error).__name__}: {error} (a bug on the node)")
        if kept.cancelled:
            return work.fault("harness", "cancelled")
        return work.fault("sandbox", f"the session's process on the node died twice ({said.strip()})")

    def _fresh_worker(self, kept: _Kept) -> Worker:
        with self._lock:
            if kept.cancelled:
                raise ChannelClosedError("cancelled")
            if self._worker is None:
                self._worker = Worker(self.settings)
            return self._worker

    def _asked(self, worker: Worker, job_id: str, kept: _Kept) -> Reply:
        folder = self._folder / job_id
        folder.mkdir(exist_ok=True)
        job = work.with_suite(kept.order.job, self._node.suite(kept.order.suite))
        worker.channel.send({"job": to_json(job), "folder": str(folder)})
        while "reply" not in (said := worker.channel.receive()):
            with self._lock:
                kept.stages.append(Stage(said["stage"]))
        return Reply.model_validate(said["reply"])


class Node:
    """All sessions. Thread-safe."""

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
        """Raises LostError."""
        with self._lock:
            if session_id not in self._sessions:
                raise LostError("the node does not know this session (any more)")
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

    def keep_suite(self, suite: Suite) -> None:
        """Raises UsageError for a suite that is none."""
        self._suites[suite.digest] = str(unpack(suite, self._folder))

    def suite(self, digest: str) -> str:
        """Where that one is. Raises LostError if it was never sent."""
        if digest not in self._suites:
            raise LostError("the node does not have these problem files")
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


def _state(kept: _Kept) -> JobState:
    return JobState(done=kept.reply is not None, stages=tuple(kept.stages), reply=kept.reply)
