"""`ast.parse` for programs with threads."""

from __future__ import annotations

import ast
import threading

LOCK = threading.RLock()
"""Held while anything is parsed. Public for programs that parse by other ways too, such as tests whose libraries call
`ast.parse`: they must take it as well. Reentrant, because what they put in its place is what `parse` calls."""


def parse(source: str | bytes, filename: str = "<unknown>") -> ast.Module:
    """As `ast.parse`, one thread at a time: up to Python 3.12 all threads share one count of the tree's depth, and a
    collection of garbage in the middle that lets another thread parse ends in a SystemError."""
    with LOCK:
        return ast.parse(source, filename)
