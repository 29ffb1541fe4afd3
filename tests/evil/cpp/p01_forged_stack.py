"""Hangs, and writes stacks of its own where those of silent ranks are looked for: line numbers that are none, and text
that takes a careless pattern hours.

Catalogue: B5
Expected: deadlock or timeout
Stage: correctness
"""

import contextlib
import os
import time

HEAD = b"Current thread 0x1 (most recent call first):\n"
NUMBER = HEAD + b'  File "candidate.py", line ' + b"7" * 5000 + b" in solution\n"
OPEN = HEAD + b'  File "' * 50000 + b"\n"


def solution(tensor):
    stacks = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if "/stack." in os.readlink(f"/proc/self/fd/{name}"):
                stacks.append(int(name))
    while True:
        for stack in stacks:
            os.write(stack, NUMBER + OPEN)
        time.sleep(0.02)
