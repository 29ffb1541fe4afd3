"""Sandboxes on the nodes of a Ray cluster (`--engine ray`): Ray places them, the driver thinks and keeps the record.

A placement group (STRICT_PACK) holds the N GPUs of one node, and an actor in it a warm sandbox; an evaluation is a task
of that actor, its candidate an object. Tasks without an actor would start a fork server, N contexts and a process group
each: ten seconds for two of measuring.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness.allowance import Allowance
from harness.errors import BudgetEndedError, HarnessError, UsageError
from harness.pool import LostError, Pool
from harness.profile_types import Profile
from harness.stages import OnStage
from harness.types import (
    BuildReport,
    Candidate,
    Evaluation,
    IsolationLevel,
    Limits,
    PlatformName,
    Request,
    Topology,
)
from problems.catalogue import Entry
from problems.spec import Case, Work
from service.engines.ray_worker import Answer, Node, Worker, source_hash

CPU_RESOURCE = "ringsmith_cpu"
"""The custom resource of a node that measures on its processors: 1, because they are one device."""
_PLACE_S = 60.0
"""How long a placement group may wait for a node that has room, and a request for a sandbox if all are lost."""
_LOOK_S = 5.0
"""How often it is looked whether there is room for another sandbox."""
_CHECK_S = 300.0
_LIMIT_S = 0.5
"""How often it is looked, during a call, whether a limit has ended it."""
_END_S = 15.0
"""How long a call that is ended may take to say what it has used."""
ASIDE = "aside"
"""The concurrency group of what a worker is told while it works."""


class RemoteSandbox:
    """A `Worker` in its placement group, as a member of a pool. Calls raise LostError once it is gone."""

    def __init__(self, platform: PlatformName, world_size: int, isolation: IsolationLevel, *, wait_s: float) -> None:
        """Raises HarnessError if no node has had room for `wait_s` seconds."""
        import ray
        from ray.util.placement_group import placement_group, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self.platform_name: PlatformName = platform
        self.world_size = world_size
        self.limits = Limits()
        self._lost = False
        self._calls = 0
        self._group = placement_group([_bundle(platform, world_size)], strategy="STRICT_PACK")
        if not self._group.wait(wait_s):
            remove_placement_group(self._group)
            raise HarnessError(f"no node of the Ray cluster had {_bundle(platform, world_size)} for {wait_s:.0f} s")
        bundle = _bundle(platform, world_size)
        remote: Any = ray.remote  # its types know of no groups
        self._actor: Any = (
            remote(concurrency_groups={ASIDE: 1})(Worker)
            .options(
                num_cpus=0,
                num_gpus=bundle.get("GPU", 0),
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
                ),
            )
            .remote(platform, world_size, isolation)
        )

    def node(self) -> Node:
        return self._get(self._actor.node.remote(), _CHECK_S)

    def inspect(self, entry: Entry, case: Case, dtype: str) -> Work:
        return self._ask("inspect", entry, case, dtype)

    def topology(self) -> Topology:
        return self._ask("topology")

    def warm_up(self) -> None:
        self._ask("warm_up")

    def compile(self, candidate: Candidate, *, allowance: Allowance | None = None) -> BuildReport:
        return self._work(allowance, "work", "compile", candidate)

    def know(self, report: BuildReport) -> None:
        """Not here: another node's cache is another."""

    def evaluate(
        self,
        request: Request,
        on_stage: OnStage | None = None,
        *,
        last: bool = False,
        allowance: Allowance | None = None,
    ) -> Evaluation:
        """Stages are not told from afar."""
        return self._work(allowance, "work", "evaluate", request)

    def profile(
        self, request: Request, folder: Path, kernel: str = "", *, allowance: Allowance | None = None
    ) -> tuple[Profile, float]:
        found, device_s, files = self._work(allowance, "profile", request, kernel)
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / Path(name).name).write_bytes(content)
        return found, device_s

    def usable(self) -> bool:
        try:
            return not self._lost and self._ask("usable")
        except LostError:
            return False

    def close(self) -> None:
        import ray
        from ray.util.placement_group import remove_placement_group

        with contextlib.suppress(Exception):  # the node may be gone
            if not self._lost:
                ray.get(self._actor.close.remote(), timeout=30)
            ray.kill(self._actor)
        with contextlib.suppress(Exception):
            remove_placement_group(self._group)

    def _ask(self, name: str, *arguments: Any) -> Any:
        return self._get(self._actor.ask.remote(name, *arguments))

    def _work(self, allowance: Allowance | None, method: str, *arguments: Any) -> Any:
        """What may take long and is charged. Raises BudgetEndedError, once the node has ended the call."""
        self._calls += 1
        bill = _Bill(allowance or Allowance())
        task = getattr(self._actor, method).remote(self._calls, *arguments)
        if bill.allowance.bounded:
            self._watch(task, bill)
        answer = self._answer(task)
        bill.charge(answer.device_s, answer.waited_s)
        return _value(answer)

    def _watch(self, task: Any, bill: _Bill) -> None:
        """Until the task is done. Raises BudgetEndedError."""
        import ray

        while not ray.wait([task], timeout=_LIMIT_S)[0]:
            number, device_s, waited_s = self._obtained(self._aside("used"), _CHECK_S)
            if number == self._calls:
                bill.charge(device_s, waited_s)
            try:
                bill.allowance.check()
            except BudgetEndedError as ended:
                self._aside("end", self._calls, ended.limit)
                with contextlib.suppress(LostError):  # it is not asked again for this call
                    answer = self._answer(task, _END_S)
                    bill.charge(answer.device_s, answer.waited_s)
                raise

    def _aside(self, name: str, *arguments: Any) -> Any:
        return getattr(self._actor, name).options(concurrency_group=ASIDE).remote(*arguments)

    def _get(self, task: Any, timeout_s: float | None = None) -> Any:
        return _value(self._answer(task, timeout_s))

    def _answer(self, task: Any, timeout_s: float | None = None) -> Answer:
        answer: Answer = self._obtained(task, timeout_s)
        return answer

    def _obtained(self, task: Any, timeout_s: float | None) -> Any:
        import ray
        from ray.exceptions import GetTimeoutError, RayError

        try:
            return ray.get(task, timeout=timeout_s)
        except GetTimeoutError:
            self._lost = True
            raise LostError(f"a node of the Ray cluster has not answered for {timeout_s:.0f} s") from None
        except RayError as error:  # the node or its worker died, or Ray lost the object
            self._lost = True
            raise LostError(f"a node of the Ray cluster is gone ({type(error).__name__})") from None


class _Bill:
    """What a call has used so far, told from time to time."""

    def __init__(self, allowance: Allowance) -> None:
        self.allowance = allowance
        self._device_s = self._waited_s = 0.0

    def charge(self, device_s: float, waited_s: float) -> None:
        """What it has used since it was told last."""
        self.allowance.charge(max(0.0, device_s - self._device_s))
        self.allowance.add_wait(max(0.0, waited_s - self._waited_s))
        self._device_s, self._waited_s = device_s, waited_s


def _value(answer: Answer) -> Any:
    from harness.evaluate import CandidateFailedError

    if answer.kind == "failed":
        raise CandidateFailedError(answer.value)
    if answer.kind == "raised":
        raise answer.value
    return answer.value


def _bundle(platform: PlatformName, world_size: int) -> dict[str, float]:
    """What one sandbox holds of a node."""
    return {CPU_RESOURCE: 1} if platform == "cpu" else {"GPU": float(world_size)}


def capacity(platform: PlatformName, world_size: int) -> int:
    """How many sandboxes the nodes have room for that are there now, each on one node."""
    import ray

    ((resource, needed),) = _bundle(platform, world_size).items()
    nodes = [node for node in ray.nodes() if node["Alive"]]
    return sum(math.floor(node["Resources"].get(resource, 0) / needed) for node in nodes)


@contextlib.contextmanager
def cluster(platform: PlatformName, world_size: int, isolation: IsolationLevel = "auto") -> Iterator[Pool]:
    """A pool over the nodes of the Ray cluster that RAY_ADDRESS names, or that this machine belongs to. Nodes that join
    later are used too; one that is lost is not waited for.

    Raises UsageError without Ray or a cluster, HarnessError if no node can be used."""
    ray = _connect()
    joining = _Joining(platform, world_size, isolation)
    pool = Pool(platform, world_size, joining.first(), patience_s=_PLACE_S)
    thread = threading.Thread(target=joining.go_on, args=(pool,), daemon=True)
    thread.start()
    try:
        yield pool
    finally:
        joining.over.set()
        thread.join(_PLACE_S)
        pool.close()
        ray.shutdown()


def _connect() -> Any:
    try:
        import ray
    except ImportError:
        raise UsageError("--engine ray needs Ray: pip install 'ringsmith[ray]'") from None
    if not ray.is_initialized():
        try:
            ray.init(address=os.environ.get("RAY_ADDRESS") or "auto", log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError:
            raise UsageError(
                "no Ray cluster: set RAY_ADDRESS, or `ray start --head` here (docs/sweeps.md); for --platform cpu add "
                f"""--resources='{{"{CPU_RESOURCE}": 1}}'"""
            ) from None
    return ray


class _Joining:
    """Makes sandboxes on nodes that have room, and refuses nodes that are not like the others."""

    def __init__(self, platform: PlatformName, world_size: int, isolation: IsolationLevel) -> None:
        self._what = (platform, world_size, isolation)
        self._like: Node | None = None
        self._refused = 0
        self.over = threading.Event()

    def first(self) -> list[RemoteSandbox]:
        platform, world_size, _ = self._what
        room = capacity(platform, world_size)
        if not room:
            raise HarnessError(f"no node of the Ray cluster has {_bundle(platform, world_size)}")
        found = [self._told()]  # alone: what the others must be like
        with ThreadPoolExecutor(16) as threads:
            found += threads.map(lambda _: self._told(), range(room - 1))
        if not any(found):
            raise HarnessError("no node of the Ray cluster can be used")
        return [one for one in found if one is not None]

    def go_on(self, pool: Pool) -> None:
        """Until `over`: fill up the pool where there is room."""
        platform, world_size, _ = self._what
        while not self.over.wait(_LOOK_S):
            with contextlib.suppress(Exception):  # a cluster in trouble is looked at again
                # Not for long: Ray takes a while to notice that a node is gone, and counts it until then.
                if capacity(platform, world_size) > len(pool) + self._refused and (one := self._join(_LOOK_S)):
                    pool.add(one)

    def _told(self) -> RemoteSandbox | None:
        try:
            return self._join(_PLACE_S)
        except HarnessError as error:
            print(f"warning: {error}", file=sys.stderr)
            return None

    def _join(self, wait_s: float) -> RemoteSandbox | None:
        """None for a node that is refused: its group is kept, so that Ray places nothing there again. Raises
        HarnessError if there is no room or the node is lost again."""
        sandbox = RemoteSandbox(*self._what, wait_s=wait_s)
        try:
            node = sandbox.node()
        except HarnessError:
            sandbox.close()
            raise
        like = self._like or Node(source=source_hash(), environment=node.environment)
        if differences := like.differences(node):
            self._refused += 1
            print(f"warning: a node of the Ray cluster is not used: {'; '.join(differences)}", file=sys.stderr)
            return None
        self._like = like
        return sandbox
