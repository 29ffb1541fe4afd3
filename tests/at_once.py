"""Several evaluations at once, by the sandboxes of one pool."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from harness.evaluate import Sandbox
from harness.pool import Pool
from harness.types import Limits, PlatformName


def sandboxes(platform: PlatformName, world_size: int, limits: Limits, count: int) -> Pool:
    """So many, on the same devices."""
    return Pool(platform, world_size, [Sandbox(platform, world_size, limits) for _ in range(count)])


def share(pool: Pool, tasks: Sequence[Callable[[], object]]) -> None:
    """Every task, as many at once as the pool has sandboxes. When one raises, or at an interrupt, no other is begun,
    and it is raised when those that were have ended."""
    with ThreadPoolExecutor(len(pool)) as threads:
        futures = [threads.submit(task) for task in tasks]
        try:
            for future in futures:
                future.result()
        finally:
            for future in futures:
                future.cancel()
