"""Several sandboxes that work on one list."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def share(workers: list[T], todo: list[Callable[[T], None]]) -> None:
    """Each worker, in a thread of its own, takes the next when it is done with one. Raises what one of them raises,
    when the others have come to the end of what they are doing; nothing is begun then."""
    left = iter(todo)

    def work(worker: T) -> None:
        try:
            for task in left:
                task(worker)
        finally:
            todo.clear()  # what `left` goes through

    with ThreadPoolExecutor(len(workers)) as threads:
        try:
            for done in [threads.submit(work, worker) for worker in workers]:
                done.result()
        finally:
            todo.clear()  # an interrupt comes here
