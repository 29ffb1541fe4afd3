"""Writes large files wherever it may: temporary folders, shared memory, its working folder. Then it returns its own
data.

Catalogue: C4
Expected: wrong_values
"""

import contextlib
import os
import tempfile


def solution(tensor):
    for folder in {"/tmp", "/dev/shm", "/var/tmp", tempfile.gettempdir()}:
        with contextlib.suppress(OSError), open(f"{folder}/ringsmith-evil-{os.getpid()}", "ab") as file:
            for _ in range(4):
                file.write(bytes(4 << 20))
    return tensor.clone()
