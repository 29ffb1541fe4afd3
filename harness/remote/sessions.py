"""A client's session on a node: a process, its jobs one after another, their results kept until they are fetched.
Imports no torch."""

from __future__ import annotations

import queue
import shutil
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError, UsageError
from harness.remote import work
from harness.remote.messages import JobState, Order, Reply, SessionSettings
from harness.remote.process import Worker
from harness.types import Stage, to_json
from harness.wire import ChannelClosedError, GarbledError

if TYPE_CHECKING:
    from harness.remote.node import Node

KEPT_S = 3600.0
"""For how long a result waits for its client."""
_MOST_JOBS = 64
"""Of one session, whose results were not fetched."""
_LOOK_S = 0.1
_CANCEL_S = 10.0
"""For a process to end its job when it is asked to: its ranks are killed, the devices looked at."""
_CANCELLED = work.fault("harness", "cancelled")


class NotKnownError(HarnessError):
    """No such session or job here (any more)."""


class FullError(HarnessError):
    """As many sessions as there may be."""


@dataclass
class Kept:
    """A job and what is known of it."""

    order: Order
    stages: list[Stage] = field(default_factory=list)
    device_s: float = 0.0
    waited_s: float = 0.0
    reply: Reply | None = None
    cancelled: bool = False
    done_at: float = 0.0

    def state(self) -> JobState:
        reply = self.reply  # the last that is set
        return JobState(
            done=reply is not None,
            stages=tuple(self.stages),
            device_s=self.device_s,
            waited_s=self.waited_s,
            reply=reply,
        )


class Session:
    """Thread-safe. Its process is started by the first job and ended when nobody has asked for anything for a while;
    the next job starts another. A client wants one thing at a time: a new job ends one that goes on."""

    def __init__(self, settings: SessionSettings, folder: Path, node: Node) -> None:
        self.settings, self._folder, self._node = settings, folder, node
        self.heard = time.monotonic()
        self.devices: tuple[int, ...] | None = None
        """GPUs that its process was given."""
        self._jobs: dict[str, Kept] = {}
        self._forgotten: set[str] = set()
        """Ids that were here: what arrives late does not begin again."""
        self._lock = threading.RLock()
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
        """Begin a job; one whose id is known is not begun again. Raises NotKnownError for one that was fetched,
        UsageError for another job under an id that is taken or for too many results not fetched, FullError."""
        with self._lock:
            if job_id in self._forgotten:
                raise NotKnownError("this job has been done and its result fetched")
            kept = self._jobs.get(job_id)
            if kept is None:
                if len(self._jobs) >= _MOST_JOBS:
                    raise UsageError(f"{_MOST_JOBS} results of this session are not fetched")
                self._node.suite(order.suite)
                self._node.admit(self)
                for name in [name for name, other in self._jobs.items() if other.reply is None]:
                    self.forget(name)
                kept = self._jobs[job_id] = Kept(order)
                self._waiting.put(job_id)
            elif kept.order != order:
                raise UsageError("the id belongs to another job")
            return kept.state()

    def state(self, job_id: str) -> JobState:
        """Raises NotKnownError."""
        with self._lock:
            if job_id not in self._jobs:
                raise NotKnownError("no such job")
            return self._jobs[job_id].state()

    def trace(self, job_id: str) -> Path:
        """Raises NotKnownError."""
        with self._lock:
            kept = self._jobs.get(job_id)
            if kept is None or kept.reply is None or kept.reply.profile is None:
                raise NotKnownError("no such trace")
            return self._folder / job_id / kept.reply.profile.trace

    def forget(self, job_id: str) -> Kept | None:
        """The client has the result, or wants none: a job that waits or runs is ended, soon. Never fails."""
        with self._lock:
            kept = self._jobs.pop(job_id, None)
            self._forgotten.add(job_id)
            if kept is not None and kept.reply is None:
                kept.cancelled = True
                if self._running != job_id:
                    kept.reply = _CANCELLED
        if kept is not None and kept.reply is not None:
            shutil.rmtree(self._folder / job_id, ignore_errors=True)
        return kept

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
        with self._lock:
            if self._running is not None and self._worker is not None:
                self._worker.kill()
        self._waiting.put(None)
        self._waiting.put("")
        self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- the session's own thread --------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (job_id := self._waiting.get()) != "":
            if job_id is None:
                with self._lock:
                    worker, self._worker, self.devices = self._worker, None, None
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
                    cancelled = kept.cancelled
                if cancelled:
                    shutil.rmtree(self._folder / job_id, ignore_errors=True)

    def _done(self, job_id: str, kept: Kept) -> Reply:
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
                        said = f"{self._worker.ended()} {error}"
                        self._worker = self.devices = None
                    kept.stages.clear()
                if kept.cancelled:
                    break
            except Exception as error:
                return work.fault("harness", f"internal: {type(error).__name__}: {error} (a bug on the node)")
        if kept.cancelled:
            return _CANCELLED
        return work.fault("sandbox", f"the session's process on the node died twice ({said.strip()})")

    def _fresh_worker(self, kept: Kept) -> Worker:
        with self._lock:
            if kept.cancelled:
                raise ChannelClosedError("cancelled")
            if self._worker is None:
                self._node.give_devices(self)
                self._worker = Worker(self.settings, self.devices)
            return self._worker

    def _asked(self, worker: Worker, job_id: str, kept: Kept) -> Reply:
        """What the process says. One that does not end a job that was cancelled is killed."""
        folder = self._folder / job_id
        folder.mkdir(exist_ok=True)
        job = work.with_suite(kept.order.job, self._node.suite(kept.order.suite))
        worker.channel.send({"job": to_json(job), "folder": str(folder)})
        before, kill_at = (kept.device_s, kept.waited_s), None  # of a process that died: used all the same
        while True:
            try:
                said = worker.channel.receive(_LOOK_S)
            except TimeoutError:
                said = {}
            if "stage" in said:
                with self._lock:
                    kept.stages.append(Stage(said["stage"]))
            used = said.get("reply", said)
            if "device_s" in used:
                kept.device_s, kept.waited_s = before[0] + used["device_s"], before[1] + used["waited_s"]
            if "reply" in said:
                return Reply.model_validate(said["reply"])
            if kept.cancelled and kill_at is None:
                worker.channel.send({"cancel": True})
                kill_at = time.monotonic() + _CANCEL_S
            elif kill_at is not None and time.monotonic() > kill_at:
                raise ChannelClosedError("it does not end its job")
