"""Makes the file of the progress words empty, through the descriptor that is kept with its own map of it: whoever else
had mapped it would end with SIGBUS. Then it hangs.

Catalogue: B5, C3
Expected: deadlock or runtime_error
Stage: correctness
"""

import contextlib
import os
import time


def solution(tensor):
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").endswith("/progress"):
                os.ftruncate(int(name), 0)
    time.sleep(1e6)
