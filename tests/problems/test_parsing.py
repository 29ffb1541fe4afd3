"""Sources are parsed in many threads at once: runs of a server or a sweep."""

import gc
import sys
import threading
import time

from problems.catalogue import find
from problems.parsing import parse


def test_threads_that_collect_garbage_do_not_disturb_each_other():
    source, failed = find(61).path.read_text(), []

    def give_way(phase: str, info: dict) -> None:
        time.sleep(0)  # as any finalizer in Python may

    def work() -> None:
        for _ in range(12):
            try:
                parse(source)
            except SystemError as error:
                failed.append(error)

    before = sys.getswitchinterval()
    gc.callbacks.append(give_way)
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.callbacks.remove(give_way)
        sys.setswitchinterval(before)
    assert not failed
