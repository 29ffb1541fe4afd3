"""`ast.parse` for programs with threads."""

from __future__ import annotations

import ast
import threading

_LOCK = threading.RLock()


def parse(source: str | bytes, filename: str = "<unknown>") -> ast.Module:
    """As `ast.parse`, one thread at a time: up to Python 3.12 all threads share one count of the tree's depth, and a
    collection of garbage in the middle that lets another thread parse ends in a SystemError."""
    with _LOCK:
        return ast.parse(source, filename)
